"""From nothing to batches: builds a dataset, looks at it, reads single examples, streams batches and goes on from a state.

    python quickstart.py                               # downloads Fashion-MNIST, 30 MB
    python quickstart.py --from FOLDER-WITH-ITS-FILES
"""

import argparse

import prep


def main(words=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", default="fashion_mnist")
    parser.add_argument("--from", dest="from_", help="folder or URL with the dataset's files, in place of a download")
    parser.add_argument("--no-checksum", action="store_true", help="takes other files than the published ones")
    parser.add_argument("--catalog", help="default: $PREP_CATALOG, else a folder in your home")
    arguments = parser.parse_args(words)
    catalog = arguments.catalog

    outcome = prep.build(arguments.dataset, from_=arguments.from_ or (), checksum=not arguments.no_checksum, catalog=catalog)
    print(f"{outcome['name']}:{outcome['version']} is {outcome['status']} in {outcome['path']}")
    for split, facts in outcome["splits"].items():
        print(f"  {split}: {facts['examples']} examples")

    dataset = prep.open(arguments.dataset, split="test", catalog=catalog)
    print(f"the last of {len(dataset)} test examples has label {dataset[-1]['label']}, the first three {dataset[:3]['label'].tolist()}")

    with prep.load(arguments.dataset, batch_size=32, seed=42, num_epochs=1, catalog=catalog) as loader:
        batch = next(loader)
        state = loader.state()
        wanted = next(loader)
    print({name: f"{array.dtype}{list(array.shape)}" for name, array in batch.items()})

    with prep.load(arguments.dataset, batch_size=32, num_epochs=1, catalog=catalog, state=state) as loader:
        again = next(loader)
    assert all((again[name] == wanted[name]).all() for name in wanted)
    print(f"a state of {len(str(state))} bytes goes on with the same batch")


if __name__ == "__main__":
    main()
