/* $name: a neural network compiled by tilewright $version for $isa ($arch).
 * Made of the model with SHA-256 $model_sha256.
 *
 * Read or map the weights file to an address that is a multiple of 64, give a workspace at such an
 * address, and call ${name}_run. It uses one thread, allocates nothing and keeps nothing between
 * calls: any number of calls may run at once, each in a workspace of its own. Link with -lm.
 */
#ifndef ${upper}_H
#define ${upper}_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Bytes of the workspace, and of the weights file; both start at multiples of the alignment. */
#define ${upper}_WORKSPACE_BYTES ${workspace_bytes}u
#define ${upper}_WEIGHTS_FILE_BYTES ${weights_file_bytes}u
#define ${upper}_ALIGNMENT 64u

/* Tensors are row-major and dense; half floats are given as their bits. */
#define ${upper}_NUM_INPUTS $num_inputs
#define ${upper}_NUM_OUTPUTS $num_outputs
$tensors

enum { ${upper}_OK = 0, ${upper}_UNALIGNED = 1, ${upper}_MISSING = 2, ${upper}_BAD_INDEX = 3 };

/* Runs the network once: `weights` from ${name}_open_weights, a `workspace` of
 * ${upper}_WORKSPACE_BYTES, `inputs` and `outputs` in the order above. Returns ${upper}_OK, or without
 * having done anything ${upper}_UNALIGNED (weights or workspace are NULL or not aligned) or
 * ${upper}_MISSING (a tensor is NULL). After ${upper}_BAD_INDEX the outputs mean nothing: an index that the
 * inputs give (of a Gather, say) lies outside its axis; nothing was read or written there. */
int ${name}_run(const void *weights, void *workspace,
                const void *const *inputs, void *const *outputs);

/* The weights within a file of `size` bytes that was read or mapped to `file`. NULL if that is not
 * aligned, belongs to another object, or is cut short or damaged. Reads all of it once. */
static inline const void *${name}_open_weights(const void *file, size_t size)
{
    static const uint8_t identity[32] = {
        $identity
    };
    const uint8_t *bytes = (const uint8_t *)file;
    uint64_t version, data_bytes, expected, word, sum = 0;
    size_t i;

    if (file == NULL || (uintptr_t)file % 64 != 0 || size < $header_bytes)
        return NULL;
    memcpy(&version, bytes + 8, 8);
    memcpy(&data_bytes, bytes + 16, 8);
    memcpy(&expected, bytes + 24, 8);
    if (memcmp(bytes, "$magic", 8) != 0 || version != $weights_version)
        return NULL;
    if (data_bytes != ${weights_bytes}u || size - $header_bytes < data_bytes)
        return NULL;
    if (memcmp(bytes + 32, identity, sizeof identity) != 0)
        return NULL;
    for (i = 0; i < data_bytes / 8; i++) {
        memcpy(&word, bytes + $header_bytes + 8 * i, 8);
        sum += word * (2 * (uint64_t)i + 1);
    }
    return sum == expected ? bytes + $header_bytes : NULL;
}

#ifdef __cplusplus
}
#endif

#endif /* ${upper}_H */
