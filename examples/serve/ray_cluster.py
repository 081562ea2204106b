"""`open_inference.py` on the machines of a Ray cluster: a replica for each, behind one address.

    pip install 'ray[serve]'
    MODEL=/shared/resnet18.tw serve run --app-dir examples/serve ray_cluster:app

Ray starts a replica for each machine, sends requests to those with the fewest, restarts what fails its check
of health, and tells clients 503 where more wait than the limits allow. The artifact lies where all machines
read it; each takes the code for its own instruction set.
"""

from __future__ import annotations

import os

from batching import MAX_WAITING
from open_inference import from_environment
from ray import serve


@serve.deployment(
    num_replicas=int(os.environ.get("REPLICAS", "1")),
    max_ongoing_requests=MAX_WAITING,
    max_queued_requests=4 * MAX_WAITING,
    ray_actor_options={
        "num_cpus": float(os.environ.get("CPUS", "1")),
        "runtime_env": {"env_vars": {"MODEL": os.environ["MODEL"]}},
    },
)
@serve.ingress(from_environment)
class Replica:
    """One machine's model: Ray builds its app there."""


app = Replica.bind()
