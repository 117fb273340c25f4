//! The machine of the measurements: no figure means anything without it.

use std::env;
use std::fmt;
use std::fs;
use std::process::Command;
use std::thread;

use serde::Serialize;

/// Load from which on [`Machine::is_busy`] says so: half a core for a minute.
const BUSY_LOAD: f64 = 0.5;

/// A description of this machine and of this build, for every result file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Machine {
    /// Processor model.
    pub(crate) cpu: String,
    /// Cores that this process may use.
    pub(crate) cores: usize,
    /// Kernel release.
    pub(crate) kernel: String,
    /// Frequency governor of the first core.
    pub(crate) governor: String,
    /// Clock source of the kernel.
    pub(crate) clock_source: String,
    /// Average number of running threads in the last minute, at the beginning: it should be near zero,
    /// since what else runs here takes part in every figure.
    pub(crate) load: String,
    /// CPU quota of this process's control group, as `cpu.max` has it.
    pub(crate) cpu_quota: String,
    /// Compiler that built this program.
    pub(crate) compiler: &'static str,
    /// Cargo profile that built this program (`measure`, `release` or `debug`).
    pub(crate) profile: &'static str,
    /// Commit of the repository in the present directory, with `-dirty` if the tree differs from it.
    pub(crate) commit: String,
}

impl Machine {
    /// Looks at this machine. What cannot be found out is `"unknown"`.
    pub(crate) fn probe() -> Self {
        Self {
            cpu: cpu_model().unwrap_or_else(unknown),
            cores: thread::available_parallelism().map_or(1, Into::into),
            kernel: line_of("/proc/sys/kernel/osrelease"),
            governor: line_of("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
            clock_source: line_of(
                "/sys/devices/system/clocksource/clocksource0/current_clocksource",
            ),
            load: line_of("/proc/loadavg").split(' ').next().unwrap_or("unknown").to_owned(),
            cpu_quota: cpu_quota(),
            compiler: env!("VIGIE_BENCH_COMPILER"),
            profile: env!("VIGIE_BENCH_PROFILE"),
            commit: commit().unwrap_or_else(unknown),
        }
    }

    /// Tells whether other programs use so much of the machine that figures suffer.
    pub(crate) fn is_busy(&self) -> bool {
        self.load.parse().is_ok_and(|load: f64| load > BUSY_LOAD)
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { cpu, cores, kernel, governor, clock_source, load, cpu_quota, .. } = self;
        let Self { compiler, profile, commit, .. } = self;
        writeln!(
            f,
            "machine: {cpu}, {cores} cores, Linux {kernel}, governor {governor}, clock {clock_source}, quota {cpu_quota}, load {load}"
        )?;
        write!(f, "build: {compiler}, {profile}, commit {commit}")
    }
}

fn unknown() -> String {
    "unknown".to_owned()
}

fn line_of(path: &str) -> String {
    fs::read_to_string(path)
        .ok()
        .and_then(|text| text.lines().next().map(|line| line.trim().to_owned()))
        .filter(|line| !line.is_empty())
        .unwrap_or_else(unknown)
}

fn cpu_model() -> Option<String> {
    let text = fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = text.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

/// The quota of control group version 2, which stands in the group's own directory.
fn cpu_quota() -> String {
    let group = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let group = group.lines().find_map(|line| line.strip_prefix("0::")).unwrap_or("/");
    let quota = line_of(&format!("/sys/fs/cgroup{}/cpu.max", group.trim_end_matches('/')));
    // The root group has no such file.
    if quota == "unknown" || quota.starts_with("max") { "none".to_owned() } else { quota }
}

fn commit() -> Option<String> {
    // Where this was built, not where it is run.
    let output = Command::new("git")
        .args(["describe", "--always", "--dirty", "--abbrev=12"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output();
    let output = output.ok().filter(|output| output.status.success())?;
    let text = String::from_utf8(output.stdout).ok()?;
    Some(text.trim().to_owned()).filter(|text| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_says_something() {
        // Goal: no field is ever empty, whatever is missing here. Method: look at this machine.
        let machine = Machine::probe();
        let shown = machine.to_string();
        assert!(machine.cores >= 1);
        assert!(!shown.contains(", ,") && !shown.contains("  "), "{shown}");
        assert_eq!(line_of("/nonexistent"), "unknown");
    }
}
