"""How a typed program uses the package: checked by `mypy --strict`, run by `test_usage.py`."""

import pathlib

import prep


def records(path: pathlib.Path) -> tuple[int, bytes, list[bytes]]:
    with prep.ArrayRecordDataSource([path]) as source:
        return len(source), source[0], source.__getitems__([2, 1])


def train(name: str, steps: int) -> dict[str, object]:
    with prep.load(name, batch_size=16, seed=1, drop_remainder=True) as loader:
        assert loader.element_spec["image"].shape == (16, 32, 32, 3)
        seen = 0
        for batch in loader:
            seen += batch["image"].shape[0]
            if seen >= 16 * steps:
                break
        state: dict[str, object] = loader.state()
    return state


def look(name: str) -> tuple[int, int, list[str]]:
    dataset = prep.open(name, split="test")
    element: prep.Element = dataset[0]
    batch: prep.Batch = dataset[[0, 1]]
    assert len(batch["label"]) == 2
    try:
        prep.open("no_such_dataset")
    except prep.errors.NotFoundError as error:
        assert "no_such_dataset" in str(error)
    return len(dataset), int(element["label"]), [entry["name"] for entry in prep.list()]


def pipeline(name: str) -> tuple[list[int], prep.transforms.Native]:
    flip = prep.transforms.Flip("image", probability=0.25)
    dataset = prep.MapDataset.load(name, columns=["label", "image"]).seed(1).shuffle().random_map(flip).repeat(2)
    stream: prep.IterDataset[prep.Batch] = dataset.to_iter_dataset().filter(lambda element: bool(element["label"] > 4)).batch(8)
    with stream.options(num_threads=1).iter() as batches:
        labels = [int(label) for label in next(batches)["label"]]
        batches.set_state(batches.get_state())
        assert next(batches)["image"].shape == (8, 32, 32, 3)
    return labels, flip
