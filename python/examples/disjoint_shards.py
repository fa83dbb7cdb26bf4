"""Shows that the shares of two processes have no record in common over an epoch, and how many records are left out.

    prep build fashion_mnist
    python disjoint_shards.py --dataset fashion_mnist --shards 2
"""

import argparse

import prep.grain as grain  # Grain's own: import grain.python as grain


def indices_of(shard_index, shard_count, num_records, drop_remainder, seed):
    """Records that one process sees in an epoch, in order."""
    options = grain.ShardOptions(shard_index=shard_index, shard_count=shard_count, drop_remainder=drop_remainder)
    sampler = grain.IndexSampler(num_records, options, shuffle=True, num_epochs=1, seed=seed)
    loader = grain.DataLoader(data_source=range(num_records), sampler=sampler)
    return list(loader)


def main(words=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", help="whose number of records is taken")
    parser.add_argument("--records", type=int, default=101, help="without a dataset")
    parser.add_argument("--shards", type=int, default=2)
    parser.add_argument("--seed", type=int, default=42)
    arguments = parser.parse_args(words)
    records = len(grain.DataSource(arguments.dataset)) if arguments.dataset else arguments.records
    for drop_remainder in (False, True):
        shares = [indices_of(index, arguments.shards, records, drop_remainder, arguments.seed) for index in range(arguments.shards)]
        seen = [set(share) for share in shares]
        for index, share in enumerate(shares):
            assert len(seen[index]) == len(share), "a record came twice"
            for other in seen[:index]:
                assert not seen[index] & other, "two shares have a record in common"
        left_out = records - sum(map(len, seen))
        print(f"drop_remainder={drop_remainder}: {arguments.shards} disjoint shares of {', '.join(map(str, map(len, shares)))} records, {left_out} left out")
        for index, share in enumerate(shares):
            print(f"  share {index} begins with {share[:6]}")


if __name__ == "__main__":
    main()
