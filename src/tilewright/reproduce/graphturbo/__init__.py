"""GraphTurbo (OSDI 2023): tables 1 to 4 and figures 14 to 17, with our planner and our simulator.

The paper measures on a card of its authors; here a described machine is simulated, none of whose numbers was
fitted to the paper's results. Figures 14 to 17 are images: what the text says of them is compared.
"""
