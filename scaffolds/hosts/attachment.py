"""Patching a host: names are checked before they are replaced, and everything can be put back.

Each adapter module has `HOST` (its name and version), and `HOOKS`: module name -> function(module, attachment), called
right after the host's module was imported, or at once if it was imported already.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import inspect
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from ttc_esopt.scaffolds.hosts.client import Client, HostError

Hook = Callable[[ModuleType, "Attachment"], None]


class Attachment:
    """What is patched in this process; `hosts` names the hosts that were met."""

    def __init__(self, client: Client, hooks: dict[str, Hook]) -> None:
        self.client = client
        self.hosts: list[str] = []
        self._hooks = hooks
        self._replaced: list[tuple[Any, str, Any]] = []
        self._finder = _Finder(self)

    def begin(self) -> None:
        """Patch what is imported already, and the rest when it comes.

        Raises
        ------
        HostError
            A host that is imported already is not one that we know.
        """
        sys.meta_path.insert(0, self._finder)
        for name in self._hooks:
            if name in sys.modules:
                self.imported(sys.modules[name])

    def restore(self) -> None:
        """Put everything back, in reverse order."""
        if self._finder in sys.meta_path:
            sys.meta_path.remove(self._finder)
        while self._replaced:
            owner, name, value = self._replaced.pop()
            setattr(owner, name, value)

    def imported(self, module: ModuleType) -> None:
        """Run the hook of a module that has just been executed."""
        self._hooks[module.__name__](module, self)

    def met(self, host: str) -> None:
        """Note that a host was recognised and patched."""
        if host not in self.hosts:
            self.hosts.append(host)

    def replace(self, owner: Any, name: str, value: Any) -> Any:
        """Set an attribute of a host; returns what stood there."""
        original = getattr(owner, name)
        self._replaced.append((owner, name, original))
        setattr(owner, name, value)
        return original

    def require(self, host: str, module: Any, names: Sequence[str]) -> None:
        """Refuse a version of `host` that lacks one of the dotted names.

        Raises
        ------
        HostError
            It says what is missing, where it was looked for, and what is supported.
        """
        for dotted in names:
            found: Any = module
            for part in dotted.split("."):
                found = getattr(found, part, None)
                if found is None:
                    where = getattr(module, "__file__", None) or module
                    raise HostError(f"Expected {host}, but {where} has no {dotted}. {SUPPORTED}")

    def require_parameters(self, host: str, function: Callable[..., Any], parameters: Sequence[str]) -> None:
        """Refuse a version of `host` whose function lacks one of the parameters.

        Raises
        ------
        HostError
            It names the function and the parameter.
        """
        accepted = inspect.signature(function).parameters
        for name in parameters:
            if name not in accepted:
                raise HostError(f"Expected {host}, but {function.__qualname__} takes no {name}. {SUPPORTED}")


SUPPORTED = "Supported are EoH 0.1 and 0.2, EoH of LLM4AD 1.0, and ReEvo 0.1."


class _Finder(importlib.abc.MetaPathFinder):
    """Finds nothing itself: it lets the others find a module that has a hook, and calls the hook after its import."""

    def __init__(self, attachment: Attachment) -> None:
        self._attachment = attachment

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name not in self._attachment._hooks:
            return None
        for finder in sys.meta_path:
            if isinstance(finder, _Finder) or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _Loader(spec.loader, self._attachment)
                return spec
        return None


class _Loader(importlib.abc.Loader):
    """A module's own loader, and the hook after it."""

    def __init__(self, loader: Any, attachment: Attachment) -> None:
        self._loader, self._attachment = loader, attachment

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> Any:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._attachment.imported(module)

    def __getattr__(self, name: str) -> Any:  # get_code, is_package and the like, asked by runpy and inspect
        return getattr(self._loader, name)
