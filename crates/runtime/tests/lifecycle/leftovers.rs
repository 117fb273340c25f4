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

/// One more than there are, which the look itself takes; without those that the first long poll of a process makes for
/// good: a perf event, and a pair of Unix sockets for datagrams over which stacks are told.
fn descriptor_count() -> usize {
    let datagrams = fs::read_to_string("/proc/net/unix").expect("/proc is there");
    let datagrams: Vec<_> = datagrams.lines().filter_map(datagram_socket).collect();
    let is_kept = |to: &str| to.contains("perf_event") || datagrams.iter().any(|name| name == to);
    let descriptors = fs::read_dir("/proc/self/fd").expect("/proc is there").flatten();
    let links = descriptors.map(|entry| fs::read_link(entry.path()).unwrap_or_default());
    links.filter(|to| !is_kept(&to.to_string_lossy())).count()
}

/// Returns the name of a descriptor of a Unix socket for datagrams, from its line in `/proc/net/unix`.
fn datagram_socket(line: &str) -> Option<String> {
    let words: Vec<_> = line.split_whitespace().collect();
    (words.get(4) == Some(&"0002")).then(|| Some(format!("socket:[{}]", words.get(6)?)))?
}

fn entries(folder: &str) -> usize {
    fs::read_dir(folder).expect("/proc is there").count()
}
