//! A control group with a quota of processor time, as a container has it.
//!
//! Version 2 (`cpu.max`) is used where its cpu controller is, version 1 (`cpu.cfs_quota_us`)
//! otherwise. Either needs a writable hierarchy, which usually means root.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process;
use std::time::Duration;

use crate::clock;
use crate::error::{BenchError, Missing};

/// The span in which the quota may be used: 100 ms, the kernel's default.
pub(crate) const PERIOD: Duration = Duration::from_millis(100);

/// Where the hierarchies with a cpu controller may be mounted.
const HIERARCHIES: [(Version, &str); 3] = [
    (Version::Two, "/sys/fs/cgroup"),
    (Version::Two, "/sys/fs/cgroup/unified"),
    (Version::One, "/sys/fs/cgroup/cpu"),
];

/// The prefix of our groups' names; the rest is the process that made them.
const PREFIX: &str = "vigie-bench-";

/// How often the removal of a group is tried: its last process may still be on its way out.
const REMOVALS: u32 = 50;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

/// A control group whose processes get a part of the processors; dropping it removes it.
#[derive(Debug)]
pub(crate) struct QuotaGroup {
    path: PathBuf,
}

impl QuotaGroup {
    /// Makes a group that may use this many `cores`, wherever that is possible.
    pub(crate) fn create(cores: f64) -> Result<Self, Missing> {
        let mut tried = Vec::new();
        for (version, hierarchy) in HIERARCHIES {
            match Self::create_in(version, Path::new(hierarchy), PERIOD.mul_f64(cores)) {
                Ok(group) => return Ok(group),
                Err(error) => tried.push(format!("{hierarchy}: {error}")),
            }
        }
        let tried = tried.join("; ");
        let what = format!("no control group with a cpu quota can be made here ({tried})");
        Err(Missing::new(what, "it needs root and a writable /sys/fs/cgroup"))
    }

    fn create_in(version: Version, hierarchy: &Path, quota: Duration) -> io::Result<Self> {
        if version == Version::Two {
            let controllers = fs::read_to_string(hierarchy.join("cgroup.controllers"))?;
            if !controllers.split_whitespace().any(|name| name == "cpu") {
                return Err(io::Error::other("no cpu controller"));
            }
            fs::write(hierarchy.join("cgroup.subtree_control"), "+cpu")?;
        }
        remove_left_behind(hierarchy);
        let path = hierarchy.join(format!("{PREFIX}{}", process::id()));
        fs::create_dir(&path)?;
        // From here on the group is removed on every way out.
        let group = Self { path };
        let (quota, period) = (quota.as_micros(), PERIOD.as_micros());
        match version {
            Version::Two => group.write("cpu.max", &format!("{quota} {period}"))?,
            Version::One => {
                group.write("cpu.cfs_period_us", &period.to_string())?;
                group.write("cpu.cfs_quota_us", &quota.to_string())?;
            }
        }
        Ok(group)
    }

    fn write(&self, file: &str, text: &str) -> io::Result<()> {
        fs::write(self.path.join(file), text)
    }

    /// Returns the group's directory.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns in how many periods so far the group's processes were stopped because they had used
    /// their quota up.
    pub(crate) fn periods_throttled(&self) -> Result<u64, BenchError> {
        let path = self.path.join("cpu.stat");
        let text = fs::read_to_string(&path).map_err(|source| BenchError::File { path, source })?;
        Ok(throttled(&text))
    }
}

impl Drop for QuotaGroup {
    fn drop(&mut self) {
        for _ in 0..REMOVALS {
            if fs::remove_dir(&self.path).is_ok() {
                return;
            }
            clock::sleep(Duration::from_millis(10));
        }
        eprintln!("cannot remove the control group {}", self.path.display());
    }
}

/// Moves this process into a group.
pub(crate) fn join(group: &Path) -> io::Result<()> {
    fs::write(group.join("cgroup.procs"), process::id().to_string())
}

/// Removes groups of runs that were killed. Those in use cannot be removed, so none is lost.
fn remove_left_behind(hierarchy: &Path) {
    let Ok(entries) = fs::read_dir(hierarchy) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let process = name.to_str().and_then(|name| name.strip_prefix(PREFIX));
        if process.is_some_and(|id| !Path::new("/proc").join(id).exists()) {
            let _ = fs::remove_dir(entry.path());
        }
    }
}

/// Finds the number of throttled periods in a `cpu.stat` file.
fn throttled(text: &str) -> u64 {
    let count = text.lines().find_map(|line| line.strip_prefix("nr_throttled "));
    count.and_then(|count| count.trim().parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn throttled_periods_are_found() {
        // Goal: the right line, in files of both versions. Method: their texts.
        let two = "usage_usec 9\nuser_usec 5\nnr_periods 12\nnr_throttled 7\nthrottled_usec 99\n";
        let one = "nr_periods 3\nnr_throttled 2\nthrottled_time 44\n";
        assert_eq!((throttled(two), throttled(one), throttled("")), (7, 2, 0));
    }
}
