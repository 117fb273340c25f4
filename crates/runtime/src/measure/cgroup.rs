//! The control group of this process, which may have a processor-time quota.

use std::{fs, path::PathBuf, time::Duration};

/// The kernel's throttling of a control group by its quota since the group was created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Throttling {
    /// Periods of the quota in which the group ran: 100 ms each by default.
    pub periods: u64,
    /// Periods in which the group used up its quota and was stopped until the next one.
    pub throttled_periods: u64,
    /// The total time for which the group was stopped, summed over processors.
    pub throttled_time: Duration,
}

/// Reads the kernel's statistics of this process's own group, version 2 or 1.
pub(super) fn read() -> Option<Throttling> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    candidates(&groups).iter().find_map(|path| parse(&fs::read_to_string(path).ok()?))
}

/// Returns the paths at which the group's statistics may be. In a container, the kernel may report the host's path while the mount
/// shows the group itself at its root.
fn candidates(groups: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for line in groups.lines() {
        let mut fields = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) =
            (fields.next(), fields.next(), fields.next())
        else {
            continue;
        };
        let root = if controllers.is_empty() {
            PathBuf::from("/sys/fs/cgroup")
        } else if controllers.split(',').any(|controller| controller == "cpu") {
            PathBuf::from("/sys/fs/cgroup").join(controllers)
        } else {
            continue;
        };
        found.push(root.join(path.trim_start_matches('/')).join("cpu.stat"));
        found.push(root.join("cpu.stat"));
    }
    found
}

fn parse(text: &str) -> Option<Throttling> {
    let value = |wanted: &str| {
        text.lines().find_map(|line| match line.split_once(' ')? {
            (name, value) if name == wanted => value.trim().parse::<u64>().ok(),
            _ => None,
        })
    };
    // Version 1 reports nanoseconds. A group without the controller has neither field.
    let throttled_time = value("throttled_usec")
        .map(Duration::from_micros)
        .or_else(|| value("throttled_time").map(Duration::from_nanos))?;
    Some(Throttling {
        periods: value("nr_periods")?,
        throttled_periods: value("nr_throttled")?,
        throttled_time,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: both versions of the file are read, and one without a quota is told apart. Method: texts.
    #[test]
    fn both_versions_are_read() {
        let second = "usage_usec 7\nnr_periods 5\nnr_throttled 2\nthrottled_usec 1500\n";
        let first = "nr_periods 5\nnr_throttled 2\nthrottled_time 1500000\n";
        let expected = Throttling {
            periods: 5,
            throttled_periods: 2,
            throttled_time: Duration::from_micros(1500),
        };
        assert_eq!(parse(second), Some(expected));
        assert_eq!(parse(first), Some(expected));
        assert_eq!(parse("usage_usec 7\nuser_usec 3\n"), None);
        assert_eq!(parse("nr_periods many\nnr_throttled 2\nthrottled_usec 1500"), None);
    }

    /// Goal: the own group is looked for first. Method: lines of both versions.
    #[test]
    fn groups_are_found() {
        let shown = |text| {
            let paths = candidates(text).into_iter();
            paths.map(|path| path.display().to_string()).collect::<Vec<_>>()
        };
        assert_eq!(shown("0::/a/b\n"), ["/sys/fs/cgroup/a/b/cpu.stat", "/sys/fs/cgroup/cpu.stat"]);
        assert_eq!(
            shown("5:memory:/m\n4:cpu,cpuacct:/docker/x\nnonsense\n"),
            ["/sys/fs/cgroup/cpu,cpuacct/docker/x/cpu.stat", "/sys/fs/cgroup/cpu,cpuacct/cpu.stat"]
        );
    }
}
