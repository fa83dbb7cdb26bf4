"""Writes the tables of BENCHMARKS.md from results.json: `python bench/table.py RESULTS.json BENCHMARKS.md`.

What stands between `<!-- results -->` and `<!-- end -->` is replaced.
"""
import json
import statistics
import sys


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
    before, rest = text.split("<!-- results -->\n")
    _, after = rest.split("<!-- end -->\n")
    with open(sys.argv[2], "w") as file:
        file.write(before + "<!-- results -->\n" + "\n".join(tables(results)) + "\n<!-- end -->\n" + after)


if __name__ == "__main__":
    main()
