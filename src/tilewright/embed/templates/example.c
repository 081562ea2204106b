/* Runs $name once on tensors in raw files.
 *
 *   cc -O2 example.c $name.o -o $name -lm
 *   ./$name $name.weights$arguments
 */
#include <stdio.h>
#include <stdlib.h>

#include "$name.h"

/* Zeroed memory at a multiple of 64 bytes, by nothing but C99. */
static void *aligned(size_t size)
{
    char *start = (char *)calloc(size + 64, 1);

    if (start == NULL) {
        fprintf(stderr, "out of memory\n");
        exit(1);
    }
    return start + (64 - (uintptr_t)start % 64);
}

static void *read_file(const char *path, size_t size)
{
    void *data = aligned(size);
    FILE *file = fopen(path, "rb");
    size_t got = file == NULL ? 0 : fread(data, 1, size, file);

    if (file == NULL || got != size) {
        fprintf(stderr, "%s: expected a file of %lu bytes\n", path, (unsigned long)size);
        exit(1);
    }
    fclose(file);
    return data;
}

static void write_file(const char *path, const void *data, size_t size)
{
    FILE *file = fopen(path, "wb");

    if (file == NULL || fwrite(data, 1, size, file) != size || fclose(file) != 0) {
        fprintf(stderr, "%s: cannot be written\n", path);
        exit(1);
    }
}

int main(int argc, char **argv)
{
    static const size_t input_bytes[] = {$input_bytes};
    static const size_t output_bytes[] = {$output_bytes};
    const void *inputs[${upper}_NUM_INPUTS + 1] = {NULL};
    void *outputs[${upper}_NUM_OUTPUTS + 1] = {NULL};
    const void *weights;
    void *workspace;
    int i, status;

    if (argc != 2 + ${upper}_NUM_INPUTS + ${upper}_NUM_OUTPUTS) {
        fprintf(stderr, "usage: $name WEIGHTS, %d input and %d output files\n",
                ${upper}_NUM_INPUTS, ${upper}_NUM_OUTPUTS);
        return 2;
    }
    weights = read_file(argv[1], ${upper}_WEIGHTS_FILE_BYTES);
    weights = ${name}_open_weights(weights, ${upper}_WEIGHTS_FILE_BYTES);
    if (weights == NULL) {
        fprintf(stderr, "%s: not the weights of $name, or damaged\n", argv[1]);
        return 1;
    }
    for (i = 0; i < ${upper}_NUM_INPUTS; i++)
        inputs[i] = read_file(argv[2 + i], input_bytes[i]);
    for (i = 0; i < ${upper}_NUM_OUTPUTS; i++)
        outputs[i] = aligned(output_bytes[i]);
    workspace = aligned(${upper}_WORKSPACE_BYTES);
    status = ${name}_run(weights, workspace, inputs, outputs);
    if (status != ${upper}_OK) {
        fprintf(stderr, "${name}_run returned %d\n", status);
        return 1;
    }
    for (i = 0; i < ${upper}_NUM_OUTPUTS; i++)
        write_file(argv[2 + ${upper}_NUM_INPUTS + i], outputs[i], output_bytes[i]);
    return 0;
}
