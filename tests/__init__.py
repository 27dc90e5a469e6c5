"""Tests of placewright; helpers that several of them share lie in this folder."""

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
