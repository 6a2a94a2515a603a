"""Puts this folder on the import path: the tests of executors use the cases of `test_engine`."""
