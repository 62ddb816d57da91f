/* A libnvidia-ml.so.1 that answers according to the file nvml.script in its own directory.
 *
 *   driver 580.95.05                driver version
 *   newest 3                        newest version of the fabric struct that this library supports
 *   name NVIDIA GB200               product name of every GPU; default: not supported
 *   gpu 3 0 <uuid> 7 0x1555 1       state, status, cluster UUID as 32 hex digits, clique, health mask, summary
 *   platform SN123 4 3              chassis serial, slot number and tray index of every GPU; default: not supported
 *   fail <function> 9               the function returns this error
 *   hang <function>                 the function never returns
 *   crash <function>                the function kills the process with SIGSEGV
 *
 * Compiled with -DOLD, it lacks nvmlDeviceGetGpuFabricInfoV, as old drivers do.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <libgen.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, VERSION_MISMATCH = 25 };

struct fabric_info { /* nvmlGpuFabricInfo_v3_t; v2 ends before the summary */
    uint32_t version;
    uint8_t cluster[16];
    uint32_t status, clique, state, mask;
    uint8_t summary;
};

struct platform_info { /* nvmlPlatformInfo_v2_t */
    uint32_t version;
    char guid[16], chassis[16];
    uint8_t slot, tray, host, peer, module;
};

static FILE *script(void) {
    static Dl_info self;
    char path[4096];
    dladdr((void *)script, &self);
    snprintf(path, sizeof path, "%s", self.dli_fname);
    char *directory = dirname(path);
    char name[4200];
    snprintf(name, sizeof name, "%s/nvml.script", directory);
    FILE *file = fopen(name, "r");
    if (!file)
        abort();
    return file;
}

/* Copies the nth line that starts with this word; returns 0 if there is none. */
static int line_of(const char *word, int nth, char *line, int size) {
    FILE *file = script();
    int found = 0;
    size_t length = strlen(word);
    while (!found && fgets(line, size, file))
        if (!strncmp(line, word, length) && line[length] == ' ' && nth-- == 0)
            found = 1;
    fclose(file);
    return found;
}

/* Applies the script's hang, crash and fail lines to a function. */
static int enter(const char *function) {
    char line[512], name[128];
    int code, nth;
    for (nth = 0; line_of("hang", nth, line, sizeof line); nth++)
        if (sscanf(line, "hang %127s", name) == 1 && !strcmp(name, function))
            for (;;)
                pause();
    for (nth = 0; line_of("crash", nth, line, sizeof line); nth++)
        if (sscanf(line, "crash %127s", name) == 1 && !strcmp(name, function))
            *(volatile int *)0 = 1;
    for (nth = 0; line_of("fail", nth, line, sizeof line); nth++)
        if (sscanf(line, "fail %127s %d", name, &code) == 2 && !strcmp(name, function))
            return code;
    return SUCCESS;
}

int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    return enter("nvmlInitWithFlags");
}

int nvmlInit_v2(void) {
    return enter("nvmlInit_v2");
}

int nvmlShutdown(void) {
    return enter("nvmlShutdown");
}

const char *nvmlErrorString(int code) {
    static char words[64];
    switch (code) {
    case 3:
        return "Not Supported";
    case 10:
        return "Timeout";
    case 15:
        return "GPU is lost";
    case 16:
        return "GPU requires reset";
    case 999:
        return "Unknown Error";
    }
    snprintf(words, sizeof words, "stub error %d", code);
    return words;
}

int nvmlSystemGetDriverVersion(char *version, unsigned length) {
    char line[512], found[80] = "";
    int code = enter("nvmlSystemGetDriverVersion");
    if (line_of("driver", 0, line, sizeof line))
        sscanf(line, "driver %79s", found);
    snprintf(version, length, "%s", found);
    return code;
}

int nvmlDeviceGetCount_v2(unsigned *count) {
    char line[512];
    for (*count = 0; line_of("gpu", *count, line, sizeof line);)
        ++*count;
    return enter("nvmlDeviceGetCount_v2");
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
    *device = (void *)(uintptr_t)(index + 1);
    return enter("nvmlDeviceGetHandleByIndex_v2");
}

int nvmlDeviceGetName(void *device, char *name, unsigned length) {
    char line[512], found[96] = "";
    (void)device;
    if (!line_of("name", 0, line, sizeof line) || sscanf(line, "name %95[^\n]", found) != 1)
        return NOT_SUPPORTED;
    snprintf(name, length, "%s", found);
    return enter("nvmlDeviceGetName");
}

int nvmlDeviceGetPlatformInfo(void *device, struct platform_info *info) {
    char line[512], serial[16] = "";
    unsigned slot, tray;
    (void)device;
    if (info->version != 0x200002c)
        return VERSION_MISMATCH;
    if (!line_of("platform", 0, line, sizeof line) || sscanf(line, "platform %15s %u %u", serial, &slot, &tray) != 3)
        return NOT_SUPPORTED;
    memcpy(info->chassis, serial, sizeof serial);
    info->slot = slot;
    info->tray = tray;
    return enter("nvmlDeviceGetPlatformInfo");
}

#ifndef OLD
int nvmlDeviceGetGpuFabricInfoV(void *device, struct fabric_info *info) {
    char line[512], cluster[33];
    int index = (int)(uintptr_t)device - 1, newest = 3, version = info->version >> 24;
    unsigned summary;
    if (line_of("newest", 0, line, sizeof line))
        sscanf(line, "newest %d", &newest);
    if (info->version != (version == 3 ? 0x3000028 : 0x2000024) || version > newest)
        return VERSION_MISMATCH;
    if (!line_of("gpu", index, line, sizeof line))
        return INVALID_ARGUMENT;
    if (sscanf(line, "gpu %u %u %32s %u %x %u", &info->state, &info->status, cluster, &info->clique, &info->mask,
               &summary) != 6)
        return INVALID_ARGUMENT;
    for (int byte = 0; byte < 16; byte++)
        sscanf(cluster + 2 * byte, "%2hhx", &info->cluster[byte]);
    if (version == 3)
        info->summary = summary;
    return enter("nvmlDeviceGetGpuFabricInfoV");
}
#endif
