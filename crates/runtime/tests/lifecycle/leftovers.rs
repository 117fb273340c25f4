//! Leftovers: threads and descriptors.

use std::fs;

use vigie_runtime::Flavor;

use crate::{flavors::FLAVORS, kit::child::in_child, settle::until};

/// Runs `test` for each flavor, in a process that only this test uses, and checks that no thread and no
/// descriptor is left behind.
pub(crate) fn alone_for_each_flavor(name: &str, test: fn(Flavor)) {
    in_child(name, move || FLAVORS.into_iter().for_each(|flavor| leaves_nothing(flavor, test)));
}

fn leaves_nothing(flavor: Flavor, test: fn(Flavor)) {
    let before = (thread_count(), descriptor_count());
    test(flavor);
    // A thread that was joined, or ends on its own, is in /proc for a moment longer.
    until(|| thread_count() <= before.0);
    until(|| descriptor_count() <= before.1);
    assert_eq!((thread_count(), descriptor_count()), before, "{flavor}");
}

fn thread_count() -> usize {
    entries("/proc/self/task")
}

/// One more than there are, which the count itself takes; without the perf event that the first long poll of a
/// process makes for good.
fn descriptor_count() -> usize {
    let descriptors = fs::read_dir("/proc/self/fd").expect("/proc is there").flatten();
    let is_kept = |path: &std::path::Path| path.to_string_lossy().contains("perf_event");
    descriptors.filter(|entry| !fs::read_link(entry.path()).is_ok_and(|to| is_kept(&to))).count()
}

fn entries(folder: &str) -> usize {
    fs::read_dir(folder).expect("/proc is there").count()
}
