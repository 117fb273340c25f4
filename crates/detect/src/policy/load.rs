//! The load of the core on which a host would poll: whether other threads need it.
//!
//! Sampled only while polling first would pay, at most every 10 ms: two small files of `/proc`,
//! about 5 µs. If they cannot be read, the host still notices when it is stopped while polling.
//! [`judge`] interprets the numbers, and `docs/design/detect.md` explains their origin.

use std::{
    fs::File,
    io::Read,
    path::{Path, PathBuf},
    time::Duration,
};

use crate::{
    clock::Instant,
    sync::{AtomicU64, OnceLock, Ordering, thread_local},
};

/// The other demand for the core.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Load {
    /// More threads can run than there are processors, on the whole machine, and this thread was
    /// disturbed. (The number alone is not enough: kernel threads that could not use another core
    /// queue up behind a real-time thread.)
    pub is_oversubscribed: bool,
    /// The host's thread was stopped while it polled, or has waited for a processor lately.
    pub was_preempted: bool,
    /// A control group limits the processor time of this process (`cpu.max`, or `cpu.cfs_quota_us`):
    /// time spent on polling is taken from tasks that run later.
    pub has_quota: bool,
}

impl Load {
    /// Returns whether nothing else needs the core.
    #[must_use]
    pub const fn is_core_free(&self) -> bool {
        !self.is_oversubscribed && !self.was_preempted && !self.has_quota
    }
}

const OVERSUBSCRIBED: u64 = 1;
const PREEMPTED: u64 = 2;
const QUOTA: u64 = 4;

/// The time for which a sample holds.
const SAMPLE_EVERY: Duration = Duration::from_millis(10);

/// The waits of a thread for a processor since the last sample.
#[derive(Clone, Copy, Debug)]
struct RunQueueWaits {
    waited_ns: u64,
    /// The number of times it has run, and so the number of times it may have waited.
    runs: u64,
    passed_ns: u64,
}

/// Interprets a sample. A thread alone on its core waits 0.1 µs before each run; one that shares it
/// waits 5 µs and more.
fn judge(is_oversubscribed: bool, waits: Option<RunQueueWaits>) -> u64 {
    let Some(RunQueueWaits { waited_ns, runs, passed_ns }) = waits else {
        return if is_oversubscribed { OVERSUBSCRIBED } else { 0 };
    };
    let each_ns = waited_ns / runs.max(1);
    let shares_core = waited_ns > passed_ns / 32 || (waited_ns >= 20_000 && each_ns >= 2_000);
    let is_disturbed = waited_ns >= 5_000 && each_ns >= 500;
    let oversubscribed = if is_oversubscribed && is_disturbed { OVERSUBSCRIBED } else { 0 };
    if shares_core { oversubscribed | PREEMPTED } else { oversubscribed }
}

/// Samples the [`Load`]. `Relaxed` throughout: stale numbers do no harm.
#[derive(Debug)]
pub(crate) struct LoadMeter {
    bits: AtomicU64,
    /// The time until which the bits are valid.
    until_ns: AtomicU64,
    is_virtual: bool,
}

thread_local! {
    /// The time for which this thread had waited for a processor, the number of times it had run, and the time at which that was
    /// read.
    static WAITED: std::cell::Cell<(u64, u64, u64)> = const { std::cell::Cell::new((0, 0, 0)) };
}

impl LoadMeter {
    /// In virtual time the core is always free.
    pub(crate) fn new(is_virtual: bool) -> Self {
        Self { bits: AtomicU64::new(0), until_ns: AtomicU64::new(0), is_virtual }
    }

    /// Returns the last sample.
    pub(crate) fn load(&self) -> Load {
        let bits = self.bits.load(Ordering::Relaxed);
        Load {
            is_oversubscribed: bits & OVERSUBSCRIBED != 0,
            was_preempted: bits & PREEMPTED != 0,
            has_quota: bits & QUOTA != 0,
        }
    }

    /// Takes a new sample if the last one is old.
    pub(crate) fn refresh(&self, now: Instant) {
        if now.as_nanos() < self.until_ns.load(Ordering::Relaxed) || self.is_virtual {
            return;
        }
        let mut buffer = [0; 128];
        let is_oversubscribed = read(Path::new("/proc/loadavg"), &mut buffer)
            .and_then(running_count)
            .is_some_and(|running| running > processor_count());
        let waits = read(Path::new("/proc/thread-self/schedstat"), &mut buffer)
            .and_then(waited_ns)
            .and_then(|(waited, runs)| {
                let now = now.as_nanos();
                let (waited_before, runs_before, then) = WAITED.replace((waited, runs, now));
                // A thread's first sample has nothing to be compared with.
                (then > 0).then(|| RunQueueWaits {
                    waited_ns: waited.saturating_sub(waited_before),
                    runs: runs.saturating_sub(runs_before),
                    passed_ns: now.saturating_sub(then),
                })
            });
        let bits = judge(is_oversubscribed, waits) | if has_quota() { QUOTA } else { 0 };
        self.publish(bits, now);
    }

    /// The host was stopped while it polled.
    pub(crate) fn preempted(&self, now: Instant) {
        self.publish(self.bits.load(Ordering::Relaxed) | PREEMPTED, now);
    }

    fn publish(&self, bits: u64, now: Instant) {
        self.bits.store(bits, Ordering::Relaxed);
        self.until_ns.store((now + SAMPLE_EVERY).as_nanos(), Ordering::Relaxed);
    }
}

fn read<'a>(path: &Path, buffer: &'a mut [u8]) -> Option<&'a str> {
    // Opened again each time: the second file is different for each thread.
    let count = File::open(path).ok()?.read(buffer).ok()?;
    std::str::from_utf8(&buffer[..count]).ok()
}

/// The running threads of the machine, from `/proc/loadavg`: "0.38 0.14 0.20 1/81 25289".
fn running_count(loadavg: &str) -> Option<usize> {
    loadavg.split_ascii_whitespace().nth(3)?.split('/').next()?.parse().ok()
}

/// Parses a thread's `schedstat`: the time for which it has waited for a processor, and the number of times it has run.
fn waited_ns(schedstat: &str) -> Option<(u64, u64)> {
    let mut fields = schedstat.split_ascii_whitespace().skip(1);
    Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
}

/// The number of processors of the machine, to which the running threads refer.
pub(crate) fn processor_count() -> usize {
    static COUNT: OnceLock<usize> = OnceLock::new();
    *COUNT.get_or_init(|| {
        let mut buffer = [0; 128];
        read(Path::new("/sys/devices/system/cpu/online"), &mut buffer)
            .and_then(count_of_list)
            .or_else(|| crate::sync::thread::available_parallelism().ok().map(Into::into))
            .unwrap_or(1)
    })
}

/// The size of a list like "0-3,8".
fn count_of_list(list: &str) -> Option<usize> {
    list.trim().split(',').try_fold(0, |count, range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        Some(count + last.checked_sub(first)? + 1)
    })
}

/// Returns whether a control group limits this process: read once, since a service starts in its group.
fn has_quota() -> bool {
    static HAS_QUOTA: OnceLock<bool> = OnceLock::new();
    *HAS_QUOTA.get_or_init(|| {
        let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let has_quota = quota_in(Path::new("/sys/fs/cgroup"), &groups);
        if has_quota {
            tracing::info!(
                "processor time is limited by a control group: no polling before sleeps"
            );
        }
        has_quota
    })
}

/// Searches for a limit in the groups that `/proc/self/cgroup` lists, and in their ancestors.
fn quota_in(mount: &Path, groups: &str) -> bool {
    groups.lines().any(|line| {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { return false };
        let path = path.trim_start_matches('/');
        if controllers.is_empty() {
            [mount.to_path_buf(), mount.join("unified")]
                .iter()
                .any(|root| is_limited(root, path, "cpu.max", |text| !text.starts_with("max")))
        } else if controllers.split(',').any(|controller| controller == "cpu") {
            ["cpu", "cpu,cpuacct"].iter().any(|name| {
                let limits = |text: &str| text.trim().parse::<i64>().is_ok_and(|quota| quota > 0);
                is_limited(&mount.join(name), path, "cpu.cfs_quota_us", limits)
            })
        } else {
            false
        }
    })
}

fn is_limited(root: &Path, path: &str, file: &str, limits: impl Fn(&str) -> bool) -> bool {
    let mut group: PathBuf = root.join(path);
    loop {
        if std::fs::read_to_string(group.join(file)).is_ok_and(|text| limits(&text)) {
            return true;
        }
        if group == root || !group.starts_with(root) || !group.pop() {
            return false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the kernel's texts are understood, and nonsense is no number. Method: examples.
    #[test]
    fn texts_are_parsed() {
        assert_eq!(running_count("0.38 0.14 0.20 3/81 25289\n"), Some(3));
        assert_eq!(running_count("0.38 0.14"), None);
        assert_eq!(waited_ns("37809164 101055 18\n"), Some((101_055, 18)));
        assert_eq!(waited_ns(""), None);
        assert_eq!(count_of_list("0-3,8\n"), Some(5));
        assert_eq!(count_of_list("0"), Some(1));
        assert_eq!(count_of_list("3-1"), None);
        assert_eq!(count_of_list(""), None);
    }

    /// Goal: a limit is found in the process's group or above, for both versions of control groups.
    /// Method: a tree of files, with and without limits.
    #[test]
    fn limits_are_found() {
        let mount = std::env::temp_dir().join(format!("vigie-load-{}", std::process::id()));
        let put = |path: &str, text: &str| {
            let path = mount.join(path);
            std::fs::create_dir_all(path.parent().expect("a path in the tree")).expect("a folder");
            std::fs::write(path, text).expect("a file");
        };
        put("unified/a/cpu.max", "max 100000\n");
        put("unified/a/b/cpu.max", "max 100000\n");
        put("unified/limited/cpu.max", "50000 100000\n");
        put("unified/limited/b/cpu.max", "max 100000\n");
        put("cpu/free/cpu.cfs_quota_us", "-1\n");
        put("cpu/limited/cpu.cfs_quota_us", "25000\n");
        let found = [
            ("0::/a/b\n", false),
            ("0::/limited/b\n", true),
            ("0::/absent\n", false),
            ("0::/../limited\n", false),
            ("3:cpuset:/\n2:cpu:/free\n0::/\n", false),
            ("2:cpuacct,cpu:/limited/deeper\n0::/\n", true),
            ("garbage\n", false),
        ];
        for (groups, expected) in found {
            assert_eq!(quota_in(&mount, groups), expected, "{groups}");
        }
        std::fs::remove_dir_all(&mount).expect("the tree is ours");
    }

    /// Goal: a thread that shares its core is detected, and one with its own core is not misled by
    /// threads that cannot use it. Method: samples as they were measured.
    #[test]
    fn a_shared_core_is_told_from_an_idle_one() {
        let waits =
            |waited_ns, runs| Some(RunQueueWaits { waited_ns, runs, passed_ns: 10_000_000 });
        // Sleeping and polling on its own core.
        assert_eq!(judge(false, waits(90_000, 860)), 0);
        assert_eq!(judge(true, waits(90_000, 860)), 0);
        assert_eq!(judge(true, waits(0, 0)), 0);
        assert_eq!(judge(true, waits(4_000, 1)), 0);
        // Beside a thread that computes, with much and with little to do.
        assert_eq!(judge(true, waits(4_600_000, 540)), OVERSUBSCRIBED | PREEMPTED);
        assert_eq!(judge(false, waits(45_000, 9)), PREEMPTED);
        assert_eq!(judge(true, waits(12_000, 10)), OVERSUBSCRIBED);
        // Preempted once while it polled.
        assert_eq!(judge(false, waits(3_000_000, 1)), PREEMPTED);
        // Nothing known of the thread: the machine decides.
        assert_eq!(judge(true, None), OVERSUBSCRIBED);
        assert_eq!(judge(false, None), 0);
    }

    /// Goal: a host that was stopped finds the core taken, until the next sample. Method: no sample
    /// is due in virtual time.
    #[test]
    fn a_stopped_host_is_in_somebodys_way() {
        let meter = LoadMeter::new(true);
        assert!(meter.load().is_core_free());
        meter.preempted(Instant::from_nanos(5));
        assert!(!meter.load().is_core_free());
    }

    /// Goal: the real files can be sampled. Method: one sample; what it says depends on the machine.
    #[test]
    fn this_machine_can_be_sampled() {
        let mut buffer = [0; 128];
        let Some(text) = read(Path::new("/proc/loadavg"), &mut buffer) else {
            eprintln!("SKIPPED: /proc/loadavg cannot be read here");
            return;
        };
        assert!(running_count(text).is_some_and(|running| running > 0), "{text}");
        assert!(processor_count() > 0);
        let meter = LoadMeter::new(false);
        meter.refresh(Instant::from_nanos(1));
        assert!(meter.until_ns.load(Ordering::Relaxed) > 1);
    }
}
