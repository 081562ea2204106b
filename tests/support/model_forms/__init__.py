"""Small models in forms that exporters write and ONNX does not quite allow, and some that mean nothing.

Each is a model and what to feed it.
"""

from tests.support.model_forms import bodies, declarations, functions, initializers, nodes, versions
from tests.support.model_forms.base import FORMS, X, model, relu, vi

__all__ = [
    "FORMS",
    "X",
    "bodies",
    "declarations",
    "functions",
    "initializers",
    "model",
    "nodes",
    "relu",
    "versions",
    "vi",
]
