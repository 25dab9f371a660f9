"""A model as the library uses it: a forward that also gives the representation, entries by name, a head to replace.

A network of the library is a `Net`: backbone, neck, head. A user's module is not changed: its classifier stays where it
is, its entries keep their names, and the representation is read where it enters the classifier.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from fullrank.errors import InputError
from fullrank.models.entries import NORM_LAYERS
from fullrank.models.findhead import Dropouts, find_head
from fullrank.models.net import Net, Output, output_of
from fullrank.models.structure import Structure
from fullrank.trees import Flat, FlatLayout, Tensors

_CALLS_ITS_CHILDREN = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
T = TypeVar("T")


class Network:
    """A module together with the position of its classifier; `Network.of` finds the classifier.

    Args:
        module: The module.
        head_name: The name of the classifier in the module.
        z_name: The name of the layer whose input is the representation: the classifier, or the dropout in front of it.
        num_classes: The number of classes.
        feature_dim: The number of dimensions of the representation.

    >>> net = nn.Sequential(nn.Flatten(), nn.Linear(12, 5), nn.ReLU(), nn.Linear(5, 3))
    >>> network = Network.of(net, torch.zeros(2, 3, 2, 2), num_classes=3)
    >>> network.head_name, network.feature_dim, network.names
    ('3', 5, ('1.weight', '1.bias', '3.weight', '3.bias'))
    """

    def __init__(self, module: nn.Module, head_name: str, z_name: str, num_classes: int, feature_dim: int):
        self.module = module
        self.head_name = head_name
        self.z_name = z_name  # the module whose input is z: the head, or the dropout in front of it
        self.num_classes = num_classes
        self.feature_dim = feature_dim
        self.neck_name = "neck" if isinstance(module, Net) else ""  # empty until a method sets a neck
        self.half: torch.dtype | None = None
        """The half-precision dtype of autocast; with None, forwards compute in the model's own dtype."""
        self.channels_last = False
        """Whether images are passed in the channels-last memory format, which fast convolutions need."""
        self.still: tuple[str, ...] = ()
        """Names of buffers that never change; the layers that hold them stay in eval mode while others train."""
        self.flat: Flat | None = None
        """The parameters as views of one vector, after `flatten_`."""
        self._neck_hook: _Neck | None = None
        self._settled = False
        self._tied: tuple[tuple[str, str], ...] = ()
        self._walked: Structure | None = None
        self._functional = _Functional(self)

    @classmethod
    def of(cls, module: nn.Module, example: Tensor, num_classes: int, head: str | None = None) -> Network:
        """Wrap a module, and find its classifier in one forward, which also materialises lazy modules.

        Args:
            module: The module.
            example: A small batch of inputs.
            num_classes: The number of classes.
            head: The name of the classifier, if it is not the last `nn.Linear` that is called.

        Raises:
            InputError: If the classifier is not found, or the module does not return scores (samples, classes).
        """
        head_name, z_name, z, logits, result = find_head(module, example, head)
        asks = "name the classifier with head= (model.head in a file)"
        if not isinstance(z, Tensor) or z.dim() != 2:
            shape = tuple(z.shape) if isinstance(z, Tensor) else type(z).__name__
            raise InputError(
                f'the input of the classifier "{head_name}" has shape {shape}, not (samples, features); {asks}'
            )
        if logits.dim() != 2 or logits.shape[1] != num_classes:
            raise InputError(
                f'the model\'s classifier "{head_name}" gives {logits.shape[-1]} outputs, but the data have '
                f"{num_classes} classes; give the model {num_classes} outputs, or {asks}"
            )
        if not isinstance(result, Tensor) or result.shape != (len(example), num_classes):
            shape = f"shape {tuple(result.shape)}" if isinstance(result, Tensor) else f"type {type(result).__name__}"
            raise InputError(f"the model's forward gives a result of {shape}; it must give scores (samples, classes)")
        return cls(module, head_name, z_name, num_classes, z.shape[1])

    # Entries

    def settle(self) -> None:
        """Fix the module's entries and layers, so that they are found once and not in every call."""
        self._walked = Structure.of(self.module)
        self._tied = self._find_tied()
        self._settled = True

    @property
    def _structure(self) -> Structure:
        if self._walked is None or not self._settled:
            self._walked = Structure.of(self.module)
        return self._walked

    def fact(self, key: Hashable, find: Callable[[], T]) -> T:
        """Return a value that depends on the entries and layers only, and cache it once they are settled.

        Args:
            key: The key of the value in the cache.
            find: A function that computes the value.
        """
        facts = self._structure.facts
        if key not in facts:
            facts[key] = find()
        found: T = facts[key]
        return found

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_walked": None, "flat": None}  # a copy has its own layers and tensors

    @property
    def parameter_names(self) -> tuple[str, ...]:
        """Names of the parameters, in the module's order; a tied parameter is listed once."""
        found = self._structure
        return self.fact("parameter names", lambda: tuple(name for name, _, _ in found.parameters))

    @property
    def buffer_names(self) -> tuple[str, ...]:
        """Names of the buffers that belong to the model's state."""
        found = self._structure
        return self.fact("buffer names", lambda: tuple(name for name, _, _ in found.buffers))

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all entries."""
        return self.parameter_names + self.buffer_names

    def parameters(self) -> dict[str, nn.Parameter]:
        """Return the module's own parameters by name."""
        return {name: table[local] for name, table, local in self._structure.parameters}

    def tensors(self) -> Tensors:
        """Return the module's own parameters and buffers by name, not copies."""
        found = self._structure
        return {name: table[local] for name, table, local in (*found.parameters, *found.buffers)}

    def some(self, names: Iterable[str]) -> Tensors:
        """Return some of the module's own tensors by name, not copies, as a `Flat` if they are adjacent in one
        vector."""
        wanted = tuple(names)
        flat = self.flat
        if flat is not None:
            part = self.fact(("part", wanted), lambda: flat.part(wanted) if all(n in flat for n in wanted) else None)
            if part is not None:
                return part
        own = self.tensors()
        return {name: own[name] for name in wanted}

    @torch.no_grad()
    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Copy values into the module's own tensors.

        Args:
            tensors: Values for some or all entries, by name.

        Raises:
            InputError: If the module has no entry of a name.
        """
        if tensors:
            own = self.tensors()
            if missing := next((name for name in tensors if name not in own), None):
                raise InputError(
                    f'the model has no entry "{missing}": the weights are those of another model, or were saved by an '
                    "earlier version of fullrank; run the experiment again in a new directory"
                )
            torch._foreach_copy_([own[name] for name in tensors], list(tensors.values()))

    @torch.no_grad()
    def flatten_(self, order: Iterable[str]) -> None:
        """Move the parameters into one vector, in this order of names. Their values do not change.

        Nothing is done if parameters have several dtypes, or if the model has recurrent layers, which need another
        layout.

        Args:
            order: The names of all parameters.

        Raises:
            ValueError: If a parameter is not named.
        """
        parameters = self.parameters()
        if len({p.dtype for p in parameters.values()}) != 1 or any(
            isinstance(part, nn.RNNBase) for part in self.module.modules()
        ):
            return
        ordered = {name: parameters[name] for name in order}
        if ordered.keys() != parameters.keys():
            raise ValueError("order must name every parameter")
        layout = FlatLayout.of({name: _dense(p.detach()) for name, p in ordered.items()})
        flat = Flat.copied({name: p.detach() for name, p in ordered.items()}, layout)
        for name, view in flat.items():
            ordered[name].data = view
        self.flat = Flat(flat.base, layout, ordered)
        self._structure.facts.clear()  # they refer to the previous tensors

    def owner(self, name: str) -> nn.Module:
        """Return the submodule that holds an entry."""
        return self.module.get_submodule(name.rpartition(".")[0])

    @property
    def dtype(self) -> torch.dtype:
        """The floating dtype of the parameters."""
        kinds = (table[local].dtype for _, table, local in self._structure.parameters)
        return next((kind for kind in kinds if kind.is_floating_point), torch.get_default_dtype())

    @property
    def has_dropout(self) -> bool:
        """Whether a training forward draws random numbers in a dropout layer."""
        return any(isinstance(m, Dropouts) and m.p > 0 for m in self._structure.modules)

    @property
    def has_batch_norm(self) -> bool:
        """Whether the network has norm layers that cannot be trained on a batch of one sample."""
        norms = nn.modules.batchnorm._BatchNorm
        return self.fact("batch norm", lambda: any(isinstance(m, norms) for m in self._structure.modules))

    # Parts that a method may replace

    @property
    def head(self) -> nn.Module:
        """The classifier."""
        return self.module.get_submodule(self.head_name)

    @head.setter
    def head(self, head: nn.Module) -> None:
        if not self.head_name:
            raise InputError("the model is a single layer, so its classifier cannot be replaced; wrap it in a module")
        self._settled, self.flat = False, None
        neck, replaced = self.neck, head is not self.head
        self.module.set_submodule(self.head_name, head)
        if not isinstance(self.module, Net) and _logits_only not in head._forward_hooks.values():
            head.register_forward_hook(_logits_only)
        before_z = self._neck_hook if self.z_name == self.head_name else None
        if before_z is not None and before_z not in head._forward_pre_hooks.values():
            head.register_forward_pre_hook(before_z)
        if replaced and self.neck_name == f"{self.head_name}.neck":
            self.neck_name = self._place_of_neck()
            self._register_neck(neck)

    @property
    def neck(self) -> nn.Module:
        """The module between the backbone and the classifier; the identity unless a method sets one."""
        return self.module.get_submodule(self.neck_name) if self.neck_name else nn.Identity()

    @neck.setter
    def neck(self, neck: nn.Module) -> None:
        self._settled, self.flat = False, None
        if not self.neck_name:
            self.neck_name = self._place_of_neck()
            self._neck_hook = _Neck(neck)
            self.module.get_submodule(self.z_name).register_forward_pre_hook(self._neck_hook)
        self._register_neck(neck)

    def _register_neck(self, neck: nn.Module) -> None:
        owner, _, name = self.neck_name.rpartition(".")
        self.module.get_submodule(owner).add_module(name, neck)
        if self._neck_hook is not None:
            self._neck_hook.neck = neck

    def _place_of_neck(self) -> str:
        """Return a name for the neck in the outermost module around the classifier that can have a further child.

        Containers such as `nn.Sequential` cannot, because they would call the child in their forward.
        """
        path = self.z_name.split(".") if self.z_name else []
        for depth in range(len(path) + 1):
            owner = self.module.get_submodule(".".join(path[:depth]))
            if not isinstance(owner, _CALLS_ITS_CHILDREN) and not hasattr(owner, "neck"):
                return ".".join([*path[:depth], "neck"])
        raise InputError(
            "the model has no place for a neck: its classifier and all around it are containers; wrap it in a module"
        )

    def bare_head(self) -> nn.Module:
        """Return a copy of the classifier without the neck that a method may have set in front of it."""
        head = copy.deepcopy(self.head)
        hooks = head._forward_pre_hooks
        for key in [key for key, hook in hooks.items() if isinstance(hook, _Neck)]:
            del hooks[key]
        if self.neck_name == (f"{self.head_name}.neck" if self.head_name else "neck"):
            del head.neck
        return head

    # Forwards

    def __call__(self, x: Tensor) -> Output:
        """Run a forward in the module's current mode, with its own tensors."""
        if self.channels_last and x.dim() == 4:
            x = _with_channels_last(x)
        if self.half is None:
            return self._forward(x)
        with torch.autocast(x.device.type, self.half):
            out = self._forward(x)
        return _in_dtype(out, self.dtype)

    def _forward(self, x: Tensor) -> Output:
        if isinstance(self.module, Net):
            return self.module.represent(x)
        head = self.head
        caught: dict[str, Any] = {}

        def catch_z(_: nn.Module, args: tuple[Any, ...]) -> None:
            caught["z"] = args[0]

        def catch_logits(_: nn.Module, args: tuple[Any, ...], result: Any) -> Tensor:
            caught["out"] = output_of(result, caught["z"])
            logits: Tensor = caught["out"].logits
            return logits

        handles = [
            self.module.get_submodule(self.z_name).register_forward_pre_hook(catch_z),
            head.register_forward_hook(catch_logits, prepend=True),
        ]
        try:
            result = self.module(x)
        finally:
            for handle in handles:
                handle.remove()
        out: Output = caught["out"]
        return out._replace(logits=result)

    def at(self, tensors: Mapping[str, Tensor], x: Tensor) -> Output:
        """Run a forward in the module's current mode with the given tensors in place of the module's.

        Args:
            tensors: The tensors by name; entries that are not named are the module's.
            x: A batch of inputs.
        """
        renamed = {f"module.{name}": tensor for name, tensor in tensors.items()}
        for name, other in self._tied if self._settled else self._find_tied():
            if name in tensors:
                renamed[f"module.{other}"] = tensors[name]
        dtype = self.dtype  # of the model's own entries: the given tensors may be in half precision already
        # torch's own tying would leave the given tensors behind in a layer that has two names.
        out: Output = torch.func.functional_call(self._functional, renamed, (x,), tie_weights=False)
        return out if self.half is None else _in_dtype(out, dtype)

    def classified(self, tensors: Mapping[str, Tensor], z: Tensor) -> Tensor:
        """Return the classifier's logits for given representations.

        Neck and dropout, which come before z or after it, are left out. Buffers of the classifier do not change.

        Args:
            tensors: The entries of the model by name.
            z: Representations of shape (N, d).
        """
        head, dtype = self.head, self.dtype
        entries = self.fact("entries of the head", self._head_entries)
        given = {local: tensors[name] for local, name in entries.items() if name in tensors}
        for local, _ in head.named_buffers():
            if local in given:
                given[local] = given[local].clone()
        autocast = contextlib.nullcontext() if self.half is None else torch.autocast(z.device.type, self.half)
        with self._without_neck(), autocast:
            result = torch.func.functional_call(head, given, (z,), tie_weights=False)
        return output_of(result, z).logits.to(dtype)

    def _head_entries(self) -> dict[str, str]:
        """Return the names of the classifier's entries, inside it and in the model; that of a tied one is the first."""
        prefix = f"{self.head_name}." if self.head_name else ""
        first = {other: name for name, other in (self._tied if self._settled else self._find_tied())}
        kinds = (self.head.named_parameters, self.head.named_buffers)
        locals_ = [local for named in kinds for local, _ in named(remove_duplicate=False)]
        return {local: first.get(prefix + local, prefix + local) for local in locals_}

    @contextlib.contextmanager
    def _without_neck(self) -> Iterator[None]:
        """Bypass the neck in front of the classifier inside the block."""
        if self._neck_hook is None:
            yield
            return
        self._neck_hook.active = False
        try:
            yield
        finally:
            self._neck_hook.active = True

    def _find_tied(self) -> tuple[tuple[str, str], ...]:
        """Return entries that several layers hold, each with a further name.

        A layer with two names counts as one layer.
        """
        first: dict[int, str] = {}
        seen: set[tuple[int, str]] = set()
        tied: list[tuple[str, str]] = []
        for kind in ("parameters", "buffers"):
            for name, tensor in getattr(self.module, f"named_{kind}")(remove_duplicate=False):
                place = id(self.owner(name)), name.rpartition(".")[2]
                if place not in seen and first.setdefault(id(tensor), name) != name:
                    tied.append((first[id(tensor)], name))
                seen.add(place)
        return tuple(tied)

    def set_mode(self, train: bool, stats: str = "move") -> None:
        """Set train or eval mode.

        Args:
            train: Whether to set train mode.
            stats: "freeze" leaves norm layers in eval mode, so that their running statistics do not change.
        """
        parts = self._structure.modules
        if self.fact("plain train", lambda: isinstance(self.module, Net) and not any(map(_has_own_train, parts))):
            for module in parts:
                _switch(module, train)
        else:
            self.module.train(train)
        if stats == "freeze":
            for module in parts:
                if isinstance(module, NORM_LAYERS):
                    _switch(module, False)
        if train and self.still:
            for module in self.fact(("still", self.still), lambda: [self.owner(name) for name in self.still]):
                _switch(module, False)

    @contextlib.contextmanager
    def mode(self, train: bool, stats: str = "move") -> Iterator[None]:
        """Set train or eval mode inside a `with` block, and restore the previous modes afterwards.

        Args:
            train: Whether to set train mode.
            stats: As in `set_mode`.
        """
        before = [(module, module.training) for module in self._structure.modules]
        self.set_mode(train, stats)
        try:
            yield
        finally:
            for module, training in before:
                _switch(module, training)


def _has_own_train(module: nn.Module) -> bool:
    """Return whether a layer overrides how modes are set, in its class or in the instance."""
    names = ("train", "children", "named_children", "__setattr__")
    return "train" in vars(module) or any(getattr(type(module), n) is not getattr(nn.Module, n) for n in names)


def _switch(module: nn.Module, training: bool) -> None:
    """Set a layer's mode without `nn.Module.__setattr__`, which would search for parameters in hundreds of layers."""
    if module.training == training:
        return
    if type(module).__setattr__ is nn.Module.__setattr__:
        vars(module)["training"] = training
    else:
        module.training = training


def _in_dtype(out: Output, dtype: torch.dtype) -> Output:
    """Convert an output to the model's own dtype, because losses exponentiate and sum it."""
    logits, z, extras = out
    return Output(logits.to(dtype), z.to(dtype), {name: value.to(dtype) for name, value in extras.items()})


def _with_channels_last(x: Tensor) -> Tensor:
    """Return images in the channels-last memory format.

    With one channel every order is channels-last, and only strides can mark it; on a GPU the weights' strides do.
    """
    if x.shape[1] > 1 or x.is_cuda:
        return x.contiguous(memory_format=torch.channels_last)
    _, _, height, width = x.shape
    return x.contiguous().as_strided(x.shape, (height * width, 1, width, 1))


def takes_channels_last(network: Network) -> bool:
    """Return whether images may be passed in the channels-last format: a `view` of a feature map forbids it.

    The library's networks and torch's layers have no such view; other layers might.
    """
    parts = list(network.module.modules())
    known = all(type(part).__module__.partition(".")[0] in ("torch", __name__.partition(".")[0]) for part in parts)
    return isinstance(network.module, Net) and known and any(isinstance(part, nn.Conv2d) for part in parts)


def _dense(tensor: Tensor) -> Tensor:
    """Return the tensor itself if it is dense in some order of its axes, else a contiguous copy."""
    if tensor.is_contiguous() or (tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last)):
        return tensor
    return tensor.contiguous()


class _Functional(nn.Module):
    """A module for `functional_call` whose forward returns the whole `Output`."""

    def __init__(self, network: Network):
        super().__init__()
        self.module = network.module
        self.call = network.__call__

    def forward(self, x: Tensor) -> Output:
        return self.call(x)


class _Neck:
    """A hook that passes a module's input through the neck first. It is an object, so that a deep copy copies its neck
    too.
    """

    def __init__(self, neck: nn.Module):
        self.neck = neck
        self.active = True

    def __call__(self, module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        return (self.neck(args[0]), *args[1:]) if self.active else args


def _logits_only(module: nn.Module, args: tuple[Any, ...], result: Any) -> Tensor:
    """Reduce a replaced classifier's result to its logits, which is all that the rest of a user's module can take."""
    logits: Tensor = result[0] if isinstance(result, tuple) else result
    return logits
