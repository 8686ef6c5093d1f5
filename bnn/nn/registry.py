"""Which families there are, on which layer types: every pairing joins as it is defined."""

from __future__ import annotations

from typing import Any, ClassVar, Generic, Protocol, TypeVar

from torch import nn


class Paired(Protocol):
    """What a pairing is known by."""

    family: ClassVar[str]
    plain: ClassVar[type[nn.Module]]


P = TypeVar("P", bound=Paired)


class Registry(Generic[P]):
    """The pairings of families and layer types."""

    def __init__(self, duties: list[str]) -> None:
        self.duties = duties  # what family and layer type have to define between them
        self.known: dict[tuple[str, type[nn.Module]], type[P]] = {}

    def pairing(self, family: str, layer_type: type[nn.Module]) -> type[P]:
        """The class that joins `family` and a torch layer type; KeyError where there is none."""
        family = family.lower()
        if family not in self.families():
            raise KeyError(f"unknown inference {family!r}; expected one of {self.families()}")
        if (family, layer_type) not in self.known:
            covered = sorted(plain.__name__ for name, plain in self.known if name == family)
            raise KeyError(f"{family!r} does not cover {layer_type.__name__}; it covers {covered}")
        return self.known[family, layer_type]

    def families(self) -> list[str]:
        """The names that `inference=` knows."""
        return sorted({family for family, _ in self.known})

    def layer_types(self) -> list[type[nn.Module]]:
        """The torch layer types that some family covers."""
        return list(dict.fromkeys(plain for _, plain in self.known))

    def join(self, cls: type[P], interface: type) -> None:
        """Registers a pairing after checking that family and layer type left nothing of the `interface` open."""
        missing = [name for name in self.duties if _defining(cls, name) in (None, interface)]
        if missing:
            raise TypeError(
                f"{cls.__name__} joins {cls.family!r} and {cls.plain.__name__} but leaves {missing} undefined"
            )
        taken = self.known.get((cls.family, cls.plain))
        if taken is not None:
            where = f"{cls.family!r} on {cls.plain.__name__} is {taken.__name__} already"
            raise TypeError(f"{where}; {cls.__name__} needs another name")
        self.known[cls.family, cls.plain] = cls


def joins(cls: type[Any]) -> bool:
    """Whether a class joins a family and a layer type itself; one that subclasses a pairing does not.

    So users may subclass pairings, and torch's parametrize may make a subclass of the class of each layer it is given.
    """
    renamed = any(name in cls.__dict__ for name in ("family", "plain"))
    return _is_pairing(cls) and (renamed or not any(_is_pairing(base) for base in cls.__bases__))


def _is_pairing(cls: type[Any]) -> bool:
    return all(_defining(cls, name) is not None for name in ("family", "plain"))


def _defining(cls: type[Any], name: str) -> type[Any] | None:
    return next((base for base in cls.__mro__ if name in base.__dict__), None)
