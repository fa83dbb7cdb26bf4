"""Writes the tables of BENCHMARKS.md: `python bench/table.py results.json|formats.json BENCHMARKS.md`.

What stands between `<!-- results -->` (or `<!-- formats -->`) and the next `<!-- end -->` is replaced.
"""
import json
import statistics
import sys

from formats import wanted


def formats_tables(results):
    machine, found = results["machine"], results["formats"]
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    texts, images = found["inputs"]["text"], found["inputs"]["image"]
    yield (
        f"{machine['date']}, {machine['cores']} cores of {machine['cpu']}, {machine['memory_gib']} GiB, Linux {machine['kernel']}; "
        f"medians of {results['rounds']} rounds of {found['seconds']:g} s; {texts['records']:,} texts of {texts['bytes'] / texts['records']:,.0f} "
        f"bytes, {images['records']:,} pictures of {images['bytes'] / images['records']:,.0f}. Versions: {versions}."
    )
    yield f"The machine kept {found['busy_cores']:.2f} cores busy meanwhile, of which about one was ours" + (
        ": compare CPU and ratios, not wall times." if found["busy_cores"] > 1.25 else "."
    )
    for package, reason in found["missing"].items():
        yield f"Not measured: {package} ({reason})."
    yield ""
    yield "| job | prep | floors | peers | best peer / prep | wanted |"
    yield "| --- | ---: | --- | --- | ---: | --- |"

    def listed(costs):
        return ", ".join(f"{label} {number(cost['cpu_us'])}" for label, cost in costs.items())

    for row in found["rows"]:
        ours = row["contenders"]["prep"]
        peers = {label.replace("prep_python", "ours in Python"): cost for label, cost in row["contenders"].items() if label != "prep"}
        aim = wanted(row).removeprefix("; wanted ").replace(" us", " µs")
        yield (
            f"| {row['name']} | {number(ours['cpu_us'])} | {listed(row['floors'])} | {listed(peers)} | "
            f"{row['ratio']:.1f} ({row['best_peer']}) | {aim} |"
        )


def number(value):
    """Two or three digits."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def tables(results):
    machine, archive = results["machine"], results["archive"]
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    images = archive["train"]["images"] + archive["test"]["images"]
    yield (
        f"{machine['date']}, {machine['cores']} cores of {machine['cpu']}, {machine['memory_gib']} GiB, Linux {machine['kernel']}; "
        f"{results['rounds']} rounds, {images:,} images, archive of {archive['bytes']:,} bytes. Versions: {versions}."
    )
    others = statistics.median(run["others_cores"] for run in results["runs"])
    yield (
        f"Other programs kept {others:.2f} cores busy meanwhile (median over the runs)"
        + (": compare CPU and ratios, not rates." if others > 0.25 else ".")
    )
    yield ""
    for part, title in (("build", "Build: archive to ArrayRecord dataset"), ("load", "Load: shuffled decoded batches of 256")):
        rows = [row for row in results["medians"] if row["part"] == part]
        if not rows:
            continue
        last = "PNG bytes" if part == "build" else "first batch s"
        yield f"### {title}\n"
        yield f"| contender | images/s | CPU ms per 1,000 | peak MB | {last} |"
        yield "| --- | ---: | ---: | ---: | ---: |"
        for row in rows:
            end = f"{row['png_bytes']:,.0f}" if part == "build" else f"{row['first_batch_s']:.2f}"
            yield (
                f"| {row['contender']} | {row['images_per_s']:,.0f} | {row['cpu_ms_per_1000']:.1f} | {row['peak_mb']:,.0f} | {end} |"
            )
        yield ""
    yield "### Ratios\n"
    yield "| ratio | value |"
    yield "| --- | ---: |"
    for name, value in results["ratios"].items():
        yield f"| {name} | {value:.2f} |"


def main():
    with open(sys.argv[1]) as file:
        results = json.load(file)
    with open(sys.argv[2]) as file:
        text = file.read()
    mark = "<!-- formats -->\n" if "formats" in results else "<!-- results -->\n"
    lines = formats_tables(results) if "formats" in results else tables(results)
    before, rest = text.split(mark)
    _, after = rest.split("<!-- end -->\n", 1)
    with open(sys.argv[2], "w") as file:
        file.write(before + mark + "\n".join(lines) + "\n<!-- end -->\n" + after)


if __name__ == "__main__":
    main()
