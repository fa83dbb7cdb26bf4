#!/bin/sh
# Prints a folder with Fashion-MNIST's four files, for the benchmark's input. Unpacks Debian's package into WORK without
# installing it; where that cannot be had, the few pictures in tests/golden serve, each with other tint and noise.
set -eu
work=$1
here=$(cd "$(dirname "$0")" && pwd)
if [ -n "${BENCH_FASHION_MNIST:-}" ]; then
    echo "$BENCH_FASHION_MNIST"
    exit
fi
folder=$work/fashion/usr/share/datasets/fashion-mnist
if [ ! -e "$folder/train-images-idx3-ubyte.gz" ]; then
    mkdir -p "$work/fashion"
    {
        cd "$work/fashion"
        apt-get download -q dataset-fashion-mnist || { apt-get update -q && apt-get download -q dataset-fashion-mnist; }
        dpkg-deb -x dataset-fashion-mnist_*.deb .
    } >"$work/fashion/log" 2>&1 || true
fi
if [ -e "$folder/train-images-idx3-ubyte.gz" ]; then
    echo "$folder"
else
    echo "note: no package dataset-fashion-mnist here: the input repeats the pictures of tests/golden/fashion_mnist" >&2
    echo "$here/../tests/golden/fashion_mnist"
fi
