"""`module` is `mario_envpool._testing`, which pip does not build."""

try:
    from mario_envpool import _testing as module
except ImportError:
    raise SystemExit(
        "this bench needs mario_envpool._testing; "
        "'python tests/support/testing_module.py' builds it"
    ) from None

__all__ = ["module"]
