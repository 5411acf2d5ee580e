from tests.server.fake_engine import engine

__all__ = ["engine"]
