/* A stand-in for NVIDIA's driver library, libnvidia-ml.so.1: as much of it as zeus 0.16 and pynvml ask for.

   It knows GPUs only where STAND_IN_NVML names a folder, which holds their state, so that processes share it:
   `gpuN` (binary), `calls` (what was set, a line each), and files that a test makes to disturb it:
   `no-permission`  nothing may be set            `lost-N`  GPU N is gone
   `holds-N`        lines of "pid bytes": memory of GPU N that processes hold while they live; pid 0: of one not shown
   `slow-N`         "MHz mask": a clock that it does not exceed, and NVML's reasons for that (0: it tells none)
   `unsteady`       "share s": power swings by up to twice that share, temperature follows it by a first-order lag of s
   `still-N`        its energy counter stands     `jump-N`  its counter is 1 MJ ahead     `cut-N`  it is cut (MIG)
   STAND_IN_NVML_GPUS says how many there are (4), STAND_IN_NVML_PROFILES which workload power profiles they offer (a
   mask; none: the GPU is older). An H100: 210 to 1980 MHz in steps of 15, power 90 + 600 (f/fmax)^3 W
   up to the limit; the energy counter integrates that over time (the seconds in the file `now`, else real time) and moves
   every 100 ms, as real ones do. */
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

enum { OK = 0, INVALID = 2, NOT_SUPPORTED = 3, NO_PERMISSION = 4, TOO_SMALL = 7, NO_DRIVER = 9, LOST = 15 };
enum { MOST_GPUS = 64, LOWEST_MHZ = 210, HIGHEST_MHZ = 1980, STEP_MHZ = 15, HIGHEST_MW = 700000, LOWEST_MW = 200000 };

typedef int Return;
typedef struct { int index; } Device;
typedef struct { double at_s, energy_mj, told_mj; unsigned clock_mhz, limit_mw; int locked; unsigned profiles; double warm_c; } State;
typedef struct { unsigned field, scope; long long at, latency; int type, result; union { unsigned u; double d; } value; } Field;
typedef struct { unsigned pid; unsigned long long bytes; unsigned instance, part; } Holder;

static Device devices[MOST_GPUS];

static int count(void) { const char *n = getenv("STAND_IN_NVML_GPUS"); return n ? atoi(n) : 4; }

static void path_of(const char *name, int index, char *path)
{
    const char *folder = getenv("STAND_IN_NVML");
    if (index < 0) snprintf(path, 4096, "%s/%s", folder ? folder : ".", name);
    else snprintf(path, 4096, "%s/%s%d", folder ? folder : ".", name, index);
}

/* Real time, or that of the file `now`, where a test lets time pass. */
static double now(void)
{
    char path[4096];
    double told_s;
    path_of("now", -1, path);
    FILE *file = fopen(path, "r");
    if (file) {
        int found = fscanf(file, "%lf", &told_s);
        fclose(file);
        if (found == 1) return told_s;
    }
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return t.tv_sec + 1e-9 * t.tv_nsec;
}

static int there(const char *name, int index)
{
    char path[4096];
    path_of(name, index, path);
    return access(path, F_OK) == 0;
}

/* The clock that a GPU runs at: what is set, or the lower one of `slow-N`, with the reasons there. */
static unsigned clock_now(int index, unsigned set_mhz, unsigned long long *reasons)
{
    char path[4096];
    unsigned most = HIGHEST_MHZ;
    unsigned long long mask = 0;
    path_of("slow-", index, path);
    FILE *file = fopen(path, "r");
    if (file) {
        if (fscanf(file, "%u %llu", &most, &mask) < 1) most = HIGHEST_MHZ;
        fclose(file);
    }
    if (reasons) *reasons = set_mhz > most ? mask : 0;
    return set_mhz < most ? set_mhz : most;
}

/* By how much power swings and temperature lags; nothing where no file `unsteady` is. */
static double unsteady(double *lag_s)
{
    char path[4096];
    double share = *lag_s = 0;
    path_of("unsteady", -1, path);
    FILE *file = fopen(path, "r");
    if (file) {
        if (fscanf(file, "%lf %lf", &share, lag_s) < 1) share = 0;
        fclose(file);
    }
    return share;
}

/* Uniform in -1 to 1, another number for each GPU and step of time. */
static double swing(int index, double at)
{
    unsigned long long x = ((unsigned long long)at * MOST_GPUS + (unsigned)index) * 0x9E3779B97F4A7C15ULL;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
    return (double)((x ^ (x >> 31)) >> 11) / (1ULL << 52) - 1;
}

/* Power at the time of a state: by the clock that the GPU runs at, with swings of 0.1 s and of 3 s. */
static double watts(const State *s, int index)
{
    double lag_s, x = (double)clock_now(index, s->clock_mhz, NULL) / HIGHEST_MHZ, w = 90 + 600 * x * x * x;
    w *= 1 + unsteady(&lag_s) * (swing(index, 10 * s->at_s) + swing(index, s->at_s / 3));
    return w < s->limit_mw / 1e3 ? w : s->limit_mw / 1e3;
}

/* Brings a GPU's state up to now and, where `set` is given, changes it: one step for all processes and threads. */
static State step(int index, void (*set)(State *, unsigned), unsigned value)
{
    State s = {0, 0, 0, HIGHEST_MHZ, HIGHEST_MW, 0, 0, 30};
    char path[4096];
    path_of("gpu", index, path);
    int file = open(path, O_RDWR | O_CREAT, 0666);
    if (file < 0) return s;
    flock(file, LOCK_EX);
    if (read(file, &s, sizeof s) != sizeof s) s.at_s = now();
    double t = now(), before_s = s.at_s, lag_s, drawn_w;
    unsteady(&lag_s);
    s.at_s = t;
    drawn_w = watts(&s, index);
    s.energy_mj += drawn_w * (t - before_s) * 1e3;
    s.warm_c += (30 + drawn_w / 20 - s.warm_c) * (lag_s > 0 ? 1 - exp((before_s - t) / lag_s) : 1);
    double told = s.energy_mj - drawn_w * fmod(t, 0.1) * 1e3;
    if (told > s.told_mj && !there("still-", index)) s.told_mj = told;
    if (set) set(&s, value);
    if (pwrite(file, &s, sizeof s, 0) != sizeof s) s.at_s = 0;
    close(file);
    return s;
}

static void note(const char *what, int index, unsigned value)
{
    char path[4096];
    path_of("calls", -1, path);
    FILE *file = fopen(path, "a");
    if (!file) return;
    fprintf(file, "%s %d %u\n", what, index, value);
    fclose(file);
}

static Return change(Device *d, const char *what, void (*set)(State *, unsigned), unsigned value)
{
    if (there("lost-", d->index)) return LOST;
    if (there("no-permission", -1)) return NO_PERMISSION;
    step(d->index, set, value);
    note(what, d->index, value);
    return OK;
}

static void set_clock(State *s, unsigned mhz) { s->clock_mhz = mhz; s->locked = 1; }
static void reset_clock(State *s, unsigned mhz) { s->clock_mhz = mhz; s->locked = 0; }
static void set_limit(State *s, unsigned mw) { s->limit_mw = mw; }

Return nvmlInitWithFlags(unsigned flags)
{
    (void)flags;
    for (int i = 0; i < MOST_GPUS; i++) devices[i].index = i;
    return getenv("STAND_IN_NVML") ? OK : NO_DRIVER;
}
Return nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
Return nvmlShutdown(void) { return OK; }

const char *nvmlErrorString(Return code)
{
    switch (code) {
    case INVALID: return "Invalid Argument";
    case NOT_SUPPORTED: return "Not Supported";
    case NO_PERMISSION: return "Insufficient Permissions";
    case NO_DRIVER: return "Driver Not Loaded";
    case LOST: return "GPU is lost";
    default: return "Unknown Error";
    }
}

/* Bytes that living processes hold of a GPU; the first `room` of those that are shown go to `found`. */
static unsigned long long held(int index, Holder *found, unsigned room, unsigned *n)
{
    char path[4096];
    unsigned long long bytes, sum = 0;
    int pid;
    *n = 0;
    path_of("holds-", index, path);
    FILE *file = fopen(path, "r");
    if (!file) return 0;
    while (fscanf(file, "%d %llu", &pid, &bytes) == 2) {
        if (pid && kill(pid, 0)) continue;
        sum += bytes;
        if (!pid) continue;
        if (*n < room) found[*n] = (Holder){(unsigned)pid, bytes, 0, 0};
        ++*n;
    }
    fclose(file);
    return sum;
}

Return nvmlDeviceGetMemoryInfo(Device *d, unsigned long long *memory)
{
    unsigned n;
    memory[0] = 80ULL << 30;
    memory[2] = (512ULL << 20) + held(d->index, NULL, 0, &n);
    memory[1] = memory[0] - memory[2];
    return OK;
}

Return nvmlDeviceGetComputeRunningProcesses_v3(Device *d, unsigned *n, Holder *found)
{
    unsigned room = found ? *n : 0;
    if (there("lost-", d->index)) return LOST;
    held(d->index, found, room, n);
    return *n > room ? TOO_SMALL : OK;
}

Return nvmlSystemGetDriverVersion(char *text, unsigned n) { snprintf(text, n, "stand-in"); return OK; }
Return nvmlDeviceGetCount_v2(unsigned *n) { *n = (unsigned)count(); return OK; }

Return nvmlDeviceGetHandleByIndex_v2(unsigned i, Device **d)
{
    if ((int)i >= count()) return INVALID;
    *d = &devices[i];
    return OK;
}

Return nvmlDeviceGetName(Device *d, char *text, unsigned n) { (void)d; snprintf(text, n, "NVIDIA H100 80GB HBM3"); return OK; }
Return nvmlDeviceGetUUID(Device *d, char *text, unsigned n) { snprintf(text, n, "GPU-stand-in-%d", d->index); return OK; }
Return nvmlDeviceGetMigMode(Device *d, unsigned *now_, unsigned *later) { *now_ = *later = there("cut-", d->index); return OK; }
Return nvmlDeviceGetArchitecture(Device *d, unsigned *a) { (void)d; *a = 9; return OK; }
Return nvmlDeviceGetC2cModeInfoV(Device *d, unsigned *info) { (void)d; (void)info; return NOT_SUPPORTED; }

Return nvmlDeviceGetTotalEnergyConsumption(Device *d, unsigned long long *mj)
{
    if (there("lost-", d->index)) return LOST;
    double told = step(d->index, NULL, 0).told_mj;
    *mj = (unsigned long long)(told + (there("jump-", d->index) ? 1e9 : 0));
    return OK;
}

Return nvmlDeviceGetPowerUsage(Device *d, unsigned *mw)
{
    if (there("lost-", d->index)) return LOST;
    State s = step(d->index, NULL, 0);
    *mw = (unsigned)(1000 * watts(&s, d->index));
    return OK;
}

Return nvmlDeviceGetFieldValues(Device *d, int n, Field *fields)
{
    for (int i = 0; i < n; i++) fields[i].result = nvmlDeviceGetPowerUsage(d, &fields[i].value.u);
    return OK;
}

Return nvmlDeviceGetTemperatureV(Device *d, unsigned *temperature)
{
    if (there("lost-", d->index)) return LOST;
    State s = step(d->index, NULL, 0);
    temperature[2] = (unsigned)s.warm_c;
    return OK;
}

Return nvmlDeviceGetUtilizationRates(Device *d, unsigned *rates) { (void)d; rates[0] = 97; rates[1] = 40; return OK; }

Return nvmlDeviceGetClockInfo(Device *d, unsigned type, unsigned *mhz)
{
    (void)type;
    *mhz = clock_now(d->index, step(d->index, NULL, 0).clock_mhz, NULL);
    return OK;
}

Return nvmlDeviceGetCurrentClocksThrottleReasons(Device *d, unsigned long long *reasons)
{
    if (there("lost-", d->index)) return LOST;
    clock_now(d->index, step(d->index, NULL, 0).clock_mhz, reasons);
    return OK;
}

Return nvmlDeviceGetSupportedMemoryClocks(Device *d, unsigned *n, unsigned *mhz)
{
    (void)d;
    unsigned room = *n;
    *n = 1;
    if (room < 1) return TOO_SMALL;
    mhz[0] = 2619;
    return OK;
}

Return nvmlDeviceGetSupportedGraphicsClocks(Device *d, unsigned memory_mhz, unsigned *n, unsigned *mhz)
{
    (void)d;
    if (memory_mhz != 2619) return INVALID;
    unsigned room = *n, i = 0;
    *n = (HIGHEST_MHZ - LOWEST_MHZ) / STEP_MHZ + 1;
    if (room < *n) return TOO_SMALL;
    for (unsigned f = HIGHEST_MHZ; f >= LOWEST_MHZ; f -= STEP_MHZ) mhz[i++] = f;
    return OK;
}

Return nvmlDeviceSetGpuLockedClocks(Device *d, unsigned low, unsigned high)
{
    if (low > high || high < LOWEST_MHZ || low > HIGHEST_MHZ) return INVALID;
    return change(d, "lock", set_clock, high);
}
Return nvmlDeviceResetGpuLockedClocks(Device *d) { return change(d, "reset", reset_clock, HIGHEST_MHZ); }

Return nvmlDeviceGetPowerManagementLimit(Device *d, unsigned *mw) { *mw = step(d->index, NULL, 0).limit_mw; return OK; }
Return nvmlDeviceGetPowerManagementDefaultLimit(Device *d, unsigned *mw) { (void)d; *mw = HIGHEST_MW; return OK; }

Return nvmlDeviceGetPowerManagementLimitConstraints(Device *d, unsigned *low, unsigned *high)
{
    (void)d;
    *low = LOWEST_MW;
    *high = HIGHEST_MW;
    return OK;
}

Return nvmlDeviceSetPowerManagementLimit(Device *d, unsigned mw)
{
    if (mw < LOWEST_MW || mw > HIGHEST_MW) return INVALID;
    return change(d, "limit", set_limit, mw);
}

/* Workload power profiles: structures of a version and masks of eight words, of which the first is enough here. */
static void add_profiles(State *s, unsigned mask) { s->profiles |= mask; }
static void drop_profiles(State *s, unsigned mask) { s->profiles &= ~mask; }

static unsigned offered(void)
{
    const char *mask = getenv("STAND_IN_NVML_PROFILES");
    return mask ? (unsigned)strtoul(mask, NULL, 0) : 0;
}

Return nvmlDeviceWorkloadPowerProfileGetProfilesInfo(Device *d, unsigned *info)
{
    (void)d;
    info[1] = offered();
    return info[1] ? OK : NOT_SUPPORTED;
}

Return nvmlDeviceWorkloadPowerProfileGetCurrentProfiles(Device *d, unsigned *found)
{
    if (!offered()) return NOT_SUPPORTED;
    found[1] = offered();
    found[9] = found[17] = step(d->index, NULL, 0).profiles;
    return OK;
}

Return nvmlDeviceWorkloadPowerProfileSetRequestedProfiles(Device *d, const unsigned *request)
{
    if (request[1] & ~offered()) return INVALID;
    return change(d, "profiles-on", add_profiles, request[1]);
}

Return nvmlDeviceWorkloadPowerProfileClearRequestedProfiles(Device *d, const unsigned *request)
{
    return change(d, "profiles-off", drop_profiles, request[1]);
}
