"""Grain transformations in a module of their own, so that worker processes can import them."""
import grain


class MapFunction(grain.transforms.Map):
    """Applies a function to each element."""

    def __init__(self, function):
        self.function = function

    def map(self, element):
        return self.function(element)
