/* Answers as NVML does, with what the file named by FAKE_NVML says at the time of each call:
 *
 *   gpu uuid=GPU-0 name=Fake memory=1000 used=10 reserved=0 minor=0 util=50 power=1000 temp=40 clock=1400
 *       ecc=0 corrected=0 pending=0 remap=0 action=0 mig=0 throttle=0 lost=0
 *   mig gpu=0 uuid=MIG-0 gi=1 ci=0 memory=100 used=10     a part of the gpu of that number
 *   process gpu=0 pid=7 memory=1    or mig=0 for one of an instance
 *   driver version=550.54.14 cuda=12040     without it versions are not told
 *   xid gpu=0 code=79 gi=4294967295     each such line is one event
 *   deny function=nvmlDeviceGetPowerUsage error=3
 *   counts-once                         there are as many devices as when it was begun
 *   hang                                calls return once the line is gone
 *
 * Numbers and layouts are those of NVIDIA's public header nvml.h.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SUCCESS = 0, UNINITIALIZED = 1, INVALID = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6,
       INSUFFICIENT_SIZE = 7, TIMEOUT = 10, GPU_IS_LOST = 15, MOST = 64, LINE = 1024 };

typedef struct { char text[LINE]; } line_t;
typedef struct { unsigned long long total, free, used; } memory_t;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } memory_v2_t;
typedef struct { unsigned gpu, memory; } utilization_t;
typedef struct { unsigned pid; unsigned long long memory; unsigned gi, ci; } process_t;
typedef struct { void *device; unsigned long long type, data; unsigned gi, ci; } event_t;
typedef struct { unsigned field, scope; long long at, took; int type, result;
                 union { double d; unsigned u; unsigned long long ull; } value; } field_t;

static int ready, consumed;
static unsigned counted;

static const char *get(const char *line, const char *key, const char *otherwise, char *out) {
    char wanted[64];
    snprintf(wanted, sizeof wanted, " %s=", key);
    const char *at = strstr(line, wanted);
    if (!at) return otherwise;
    sscanf(at + strlen(wanted), "%511s", out);
    return out;
}

static unsigned long long number(const char *line, const char *key, unsigned long long otherwise) {
    char out[512];
    const char *text = get(line, key, NULL, out);
    return text ? strtoull(text, NULL, 10) : otherwise;
}

/* The n-th line of a kind; the number of such lines when n is -1. */
static int find(const char *kind, int n, line_t *found) {
    FILE *file = fopen(getenv("FAKE_NVML"), "r");
    int count = 0;
    line_t line;
    size_t length = strlen(kind);
    while (file && fgets(line.text, LINE, file)) {
        line.text[strcspn(line.text, "\n")] = 0;
        if (strncmp(line.text, kind, length) || (line.text[length] && line.text[length] != ' ')) continue;
        if (count++ == n) { *found = line; fclose(file); return 1; }
    }
    if (file) fclose(file);
    return n == -1 ? count : 0;
}

static int denied(const char *function) {
    line_t line;
    char out[512];
    while (find("hang", -1, NULL)) usleep(10000);
    for (int i = 0; find("deny", i, &line); i++)
        if (!strcmp(get(line.text, "function", "", out), function))
            return (int)number(line.text, "error", NOT_SUPPORTED);
    return ready || !strcmp(function, "nvmlInitWithFlags") ? SUCCESS : UNINITIALIZED;
}

#define MIG_HANDLE 1000
#define DENIED() do { int d_ = denied(__func__); if (d_) return d_; } while (0)
/* `line` is what is said of the device: of its gpu for an instance that says nothing itself. */
#define DEVICE() line_t line; DENIED(); do { int l_ = look(device, &line); if (l_) return l_; } while (0)

static int is_mig(void *device) { return (size_t)device > MIG_HANDLE; }

static int look(void *device, line_t *line) {
    size_t n = (size_t)device;
    if (is_mig(device)) return find("mig", (int)(n - MIG_HANDLE - 1), line) ? SUCCESS : NOT_FOUND;
    if (!find("gpu", (int)n - 1, line)) return NOT_FOUND;
    return number(line->text, "lost", 0) ? GPU_IS_LOST : SUCCESS;
}

const char *nvmlErrorString(int code) { return code == GPU_IS_LOST ? "GPU is lost" : "scripted error"; }
int nvmlInitWithFlags(unsigned flags) { (void)flags; DENIED(); ready = 1; counted = find("gpu", -1, NULL); return SUCCESS; }
int nvmlShutdown(void) { ready = 0; return SUCCESS; }

int nvmlDeviceGetCount_v2(unsigned *count) {
    DENIED();
    *count = find("counts-once", -1, NULL) ? counted : (unsigned)find("gpu", -1, NULL);
    return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
    line_t line;
    DENIED();
    *device = (void *)(size_t)(index + 1);
    return look(*device, &line);
}

static int text(const char *line, const char *key, char *out, unsigned size) {
    char found[512];
    snprintf(out, size, "%s", get(line, key, "Fake-GPU", found));
    return SUCCESS;
}

int nvmlSystemGetDriverVersion(char *out, unsigned size) {
    line_t line;
    DENIED();
    return find("driver", 0, &line) ? text(line.text, "version", out, size) : NOT_SUPPORTED;
}

int nvmlSystemGetCudaDriverVersion_v2(int *out) {
    line_t line;
    DENIED();
    if (!find("driver", 0, &line)) return NOT_SUPPORTED;
    *out = (int)number(line.text, "cuda", 0);
    return SUCCESS;
}

int nvmlDeviceGetUUID(void *device, char *out, unsigned size) { DEVICE(); return text(line.text, "uuid", out, size); }
int nvmlDeviceGetName(void *device, char *out, unsigned size) { DEVICE(); return text(line.text, "name", out, size); }

int nvmlDeviceGetMemoryInfo(void *device, memory_t *memory) {
    DEVICE();
    memory->total = number(line.text, "memory", 1000);
    memory->used = number(line.text, "used", 0) + number(line.text, "reserved", 0);
    memory->free = memory->total - memory->used;
    return SUCCESS;
}

int nvmlDeviceGetMemoryInfo_v2(void *device, memory_v2_t *memory) {
    DEVICE();
    if (memory->version != (sizeof *memory | 2 << 24)) return INVALID;
    memory->total = number(line.text, "memory", 1000);
    memory->reserved = number(line.text, "reserved", 0);
    memory->used = number(line.text, "used", 0);
    memory->free = memory->total - memory->used - memory->reserved;
    return SUCCESS;
}

#define UNSIGNED(NAME, KEY, OTHERWISE) \
    int NAME(void *device, unsigned *out) { \
        DEVICE(); \
        if (is_mig(device)) return NOT_SUPPORTED; \
        *out = (unsigned)number(line.text, KEY, OTHERWISE); \
        return SUCCESS; \
    }
UNSIGNED(nvmlDeviceGetMinorNumber, "minor", 0)
UNSIGNED(nvmlDeviceGetPowerUsage, "power", 50000)
UNSIGNED(nvmlDeviceGetRetiredPagesPendingStatus, "pending", 0)
UNSIGNED(nvmlDeviceGetMaxMigDeviceCount, "most", 7)

int nvmlDeviceGetGpuInstanceId(void *device, unsigned *out) { DEVICE(); *out = number(line.text, "gi", 0); return SUCCESS; }
int nvmlDeviceGetComputeInstanceId(void *device, unsigned *out) { DEVICE(); *out = number(line.text, "ci", 0); return SUCCESS; }

int nvmlDeviceGetUtilizationRates(void *device, utilization_t *out) {
    DEVICE();
    if (is_mig(device)) return NOT_SUPPORTED;
    out->gpu = number(line.text, "util", 0);
    out->memory = 0;
    return SUCCESS;
}

int nvmlDeviceGetTemperature(void *device, int sensor, unsigned *out) {
    (void)sensor;
    DEVICE();
    *out = number(line.text, "temp", 40);
    return SUCCESS;
}

int nvmlDeviceGetClockInfo(void *device, int kind, unsigned *out) {
    (void)kind;
    DEVICE();
    *out = number(line.text, "clock", 1400);
    return SUCCESS;
}

int nvmlDeviceGetTotalEccErrors(void *device, int kind, int counter, unsigned long long *out) {
    (void)counter;
    DEVICE();
    *out = number(line.text, kind ? "ecc" : "corrected", 0);
    return SUCCESS;
}

int nvmlDeviceGetRemappedRows(void *device, unsigned *corrected, unsigned *uncorrected, unsigned *pending, unsigned *failed) {
    DEVICE();
    *corrected = *uncorrected = *pending = 0;
    *failed = number(line.text, "remap", 0);
    return SUCCESS;
}

int nvmlDeviceGetCurrentClocksEventReasons(void *device, unsigned long long *out) {
    DEVICE();
    *out = number(line.text, "throttle", 0);
    return SUCCESS;
}

int nvmlDeviceGetFieldValues(void *device, int count, field_t *values) {
    DEVICE();
    for (int i = 0; i < count; i++) {
        values[i].type = 1;
        values[i].result = values[i].field == 230 ? SUCCESS : NOT_SUPPORTED;
        values[i].value.u = number(line.text, "action", 0);
    }
    return SUCCESS;
}

int nvmlDeviceGetMigMode(void *device, unsigned *current, unsigned *pending) {
    DEVICE();
    *current = *pending = number(line.text, "mig", 0);
    return SUCCESS;
}

int nvmlDeviceGetMigDeviceHandleByIndex(void *device, unsigned index, void **out) {
    line_t part;
    unsigned seen = 0;
    DEVICE();
    for (int i = 0; find("mig", i, &part); i++)
        if (number(part.text, "gpu", 0) == (size_t)device - 1 && seen++ == index) {
            *out = (void *)(size_t)(MIG_HANDLE + 1 + i);
            return SUCCESS;
        }
    return NOT_FOUND;
}

int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count, process_t *out) {
    line_t one;
    unsigned found = 0, room = *count;
    size_t wanted = is_mig(device) ? (size_t)device - MIG_HANDLE - 1 : (size_t)device - 1;
    DEVICE();
    for (int i = 0; find("process", i, &one); i++) {
        if (number(one.text, is_mig(device) ? "mig" : "gpu", MOST) != wanted) continue;
        if (out && found < room)
            out[found] = (process_t){number(one.text, "pid", 0), number(one.text, "memory", 0), 0, 0};
        found++;
    }
    *count = found;
    return found > (out ? room : 0) ? INSUFFICIENT_SIZE : SUCCESS;
}

int nvmlEventSetCreate(void **set) { DENIED(); *set = (void *)1; return SUCCESS; }
int nvmlDeviceRegisterEvents(void *device, unsigned long long types, void *set) { (void)types; (void)set; DEVICE(); return SUCCESS; }
int nvmlEventSetFree(void *set) { (void)set; return SUCCESS; }

int nvmlEventSetWait_v2(void *set, event_t *event, unsigned timeout) {
    line_t line;
    (void)set; (void)timeout;
    DENIED();
    if (!find("xid", consumed, &line)) return TIMEOUT;
    consumed++;
    *event = (event_t){(void *)(size_t)(number(line.text, "gpu", 0) + 1), 8, number(line.text, "code", 0),
                       (unsigned)number(line.text, "gi", 0xFFFFFFFFu), 0xFFFFFFFFu};
    return SUCCESS;
}
