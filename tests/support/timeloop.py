"""Files of Timeloop's, of every version, for tests of what reads them."""

from __future__ import annotations

from pathlib import Path

TREE = """
architecture:
  version: 0.3
  subtree:
  - name: System
    attributes: {technology: 45nm, word-bits: 32}
    local:
    - name: DRAM
      class: DRAM
      attributes: {block-size: 64, bandwidth: 20.0, word-bits: 8}
    subtree:
    - name: Chip
      local:
      - name: GlobalBuffer
        class: storage
        subclass: smartbuffer_SRAM
        attributes: {memory_depth: 512, block-size: 8, n_banks: 4, read_bandwidth: 16, word-bits: 8}
      - name: NoC
        class: XY_NoC
        attributes: {datawidth: 16}
      subtree:
      - name: PE[0..15]
        local:
        - name: Weights[0..3]
          class: SRAM
          attributes: {sizeKB: 2, width: 64, block-size: 1}
        - name: Registers
          class: regfile
          attributes: {entries: 64, instances: 256, cluster-size: 16, multiple-buffering: 2, word-bits: 8}
        - name: MACC[0..31]
          class: intmac
          attributes: {datawidth: 16}
"""
LIST = """
architecture:
  version: 0.4
  nodes:
  - !Container
    name: system
  - !Component
    name: DRAM
    class: DRAM
    attributes: {type: LPDDR4, width: 64, datawidth: 8}
  - !Component
    name: glb
    class: smartbuffer_SRAM
    attributes: {depth: 1024, width: 64, datawidth: 8, read_bandwidth: 16, write_bandwidth: 4}
    constraints:
      dataspace: {keep: [Inputs, Outputs], bypass: [Weights]}
  - !Container
    name: column
    spatial: {meshX: 14}
    constraints: {spatial: {permutation: [N, C], factors: [N=1]}}
  - !Container
    name: PE
    spatial: {meshY: 12}
  - !Parallel
    nodes:
    - !Component
      name: ifmap_spad
      class: smartbuffer_RF
      attributes: {depth: 12, width: 16, datawidth: 8}
      constraints: {dataspace: {keep: [Inputs]}}
    - !Component
      name: weights_spad
      class: smartbuffer_RF
      attributes: {depth: 96, width: 16, datawidth: 8}
      constraints: {dataspace: {keep: [Weights]}}
  - !Component
    name: mac
    class: intmac
    attributes: {multiplier_width: 8, adder_width: 16, datawidth: 8}
"""
FLAT = """
arch:
  arithmetic: {instances: 8, word-bits: 8}
  storage:
  - {name: Registers, entries: 1, instances: 8, meshX: 8, word-bits: 8, cluster-size: 4}
  - {name: Buffer, entries: 64, instances: 2, word-bits: 24, num-banks: 2}
  - {name: DRAM, technology: DRAM, instances: 1, word-bits: 8, block-size: 64, bandwidth: 20.0}
mapspace:
  constraints:
  - {target: Registers, type: datatype, keep: [Weights], bypass: [Inputs, Outputs]}
  - {target: Buffer, type: temporal, factors: R=0}
"""
CONVOLUTION = """
problem:
  shape:
    name: cnn
    dimensions: [C, M, R, S, N, P, Q]
    coefficients:
    - {name: Wstride, default: 1}
    - {name: Hstride, default: 1}
    - {name: Wdilation, default: 1}
    data-spaces:
    - name: Weights
      projection: [[[C]], [[M]], [R], S]
    - name: Inputs
      projection: [[[N]], [[C]], [[R, Wdilation], [P, Wstride]], [[S], [Q, Hstride]]]
    - name: Outputs
      projection: [[[N]], [[M]], [[Q]], [[P]]]
      read-write: True
  instance: {C: 4, M: 6, R: 3, S: 2, N: 1, P: 8, Q: 9, Wstride: 2, Hstride: 3}
"""
PRODUCT = """
problem:
  shape:
    name: product
    dimensions: [I, J, K]
    data_spaces:
    - {name: A, projection: [[[I]], [[K]]]}
    - {name: B, projection: [[[K]], [[J]]]}
    - {name: Z, projection: [[[I]], [[J]]], read_write: true}
  instance: {I: 4, J: 6, K: 8}
"""


def written(folder: Path, text: str, name: str = "one.yaml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


MAPPING = """
mapping:
- {target: Buffer, type: bypass, keep: [A, B, Z], bypass: []}
- {target: Memory, type: temporal, factors: I=0 J=2 K=1, permutation: JIK}
- {target: Memory, type: spatial, factors: "I1 J1 K2", permutation: KIJ, split: 1}
- {target: Buffer, factors: ["K = 4", "J=3"], permutation: [J, K]}
"""
TWO_LEVELS = """
name: two levels
levels:
  - {name: Buffer, capacity_bytes: 4096, num_instances_per_parent: 2}
  - {name: Memory}
units: [{name: mac, kind: mac, macs_per_cycle: {int8: 1}}]
"""
# In the form that Timeloop's front end hands on: everything in one subtree, fan-outs as memories of no size.
PROCESSED = """
dumped_by_timeloop_front_end: true
architecture:
  version: '0.4'
  subtree:
  - name: system_top_level
    attributes: {version: '0.4', technology: 45nm, power_gated_at: null}
    local:
    - name: DRAM[1..1]
      class: DRAM
      attributes: {width: 64, datawidth: 8, cluster_size: 1, allow_overbooking: false, power_gated_at: null}
      required_actions: [read, write, leak]
      enabled: true
    - name: shared_glb[1..1]
      class: smartbuffer_SRAM
      attributes: {depth: 16384, width: 64, datawidth: 8, cluster_size: 1, n_banks: 32,
        read_bandwidth: 16, write_bandwidth: 16, multiple_buffering: 1, min_utilization: 0}
    - name: inter_PE_column_spatial[1..1]
      class: dummy_storage
      attributes: {width: 1, depth: 1, datawidth: 1, technology: -1, meshX: 1, meshY: 1}
    - name: inter_PE_spatial[1..14]
      class: dummy_storage
      attributes: {width: 1, depth: 1, datawidth: 1, technology: -1, meshX: 14, meshY: 1}
    - name: ifmap_spad[1..168]
      class: smartbuffer_RF
      attributes: {depth: 12, width: 16, datawidth: 8, cluster_size: 1, meshX: 14, meshY: 12}
    - name: weights_spad[1..168]
      class: smartbuffer_RF
      attributes: {depth: 192, width: 16, datawidth: 8, cluster_size: 1, reduction_supported: true}
    - name: psum_spad[1..168]
      class: smartbuffer_RF
      attributes: {depth: 16, width: 16, datawidth: 16, cluster_size: 1, update_fifo_depth: 2}
    - name: old[1..168]
      class: smartbuffer_RF
      enabled: false
    - name: mac[1..168]
      class: intmac
      attributes: {multiplier_width: 8, adder_width: 16, meshX: 14, meshY: 12}
architecture_constraints:
  targets:
  - {target: DRAM, type: temporal, permutation: N}
  - {target: shared_glb, type: bypass, keep: [Inputs, Outputs], bypass: [Weights]}
  - {target: inter_PE_column_spatial, type: bypass, bypass: [Weights, Inputs, Outputs]}
  - {target: inter_PE_spatial, type: bypass, bypass: [Weights, Inputs, Outputs]}
  - {target: ifmap_spad, type: bypass, keep: [Inputs], bypass: [Weights, Outputs]}
  - {target: weights_spad, type: bypass, keep: [Weights], bypass: [Inputs, Outputs]}
  - {target: psum_spad, type: bypass, keep: [Outputs], bypass: [Weights, Inputs]}
problem:
  version: '0.4'
  shape:
    name: conv2D
    dimensions: [C, M, R, S, N, P, Q]
    coefficients: [{name: Wstride, default: 1}, {name: Hstride, default: 1}]
    data_spaces:
    - {name: Weights, projection: [[[C]], [[M]], [[R]], [[S]]], read_write: false}
    - {name: Inputs, projection: [[[N]], [[C]], [[R], [P, Wstride]], [[S], [Q, Hstride]]], read_write: false}
    - {name: Outputs, projection: [[[N]], [[M]], [[Q]], [[P]]], read_write: true}
  instance: {C: 3, M: 32, R: 3, S: 3, N: 1, P: 112, Q: 112, H: 224, W: 224, Hpad: 1, Wpad: 1,
    Wstride: 2, Hstride: 2, densities: {}}
ERT:
  version: '0.4'
  tables:
  - name: system_top_level.DRAM[1..1]
    actions:
    - {name: read, arguments: {}, energy: 512.0}
    - {name: write, arguments: {}, energy: 512.0}
    - {name: update, arguments: {}, energy: 512.0}
    - {name: leak, arguments: {}, energy: 0.0}
  - name: system_top_level.shared_glb[1..1]
    actions:
    - {name: read, arguments: {row: new}, energy: 18.183829}
    - {name: read, arguments: {row: same}, energy: 9.0}
    - {name: write, energy: 14.137929}
  - name: system_top_level.mac[1..168]
    actions: [{name: compute, energy: 0.207692}]
"""
