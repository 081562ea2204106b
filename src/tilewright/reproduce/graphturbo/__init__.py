"""GraphTurbo (OSDI 2023): its tables, figures and what its text says of them, by our planner and simulator.

The paper measures on a card of its authors; here a described machine is simulated, none of whose numbers was
fitted to the paper's results. Figures 14 to 17 are images: what the text says of them is compared.
"""
