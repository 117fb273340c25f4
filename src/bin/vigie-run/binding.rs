//! The assignment of ranks to processors.

use std::{fs, io};

use rustix::thread::{CpuSet, sched_getaffinity};

/// The processors that the launcher may use, in the order of assignment: first one of each core, then their siblings.
pub(crate) fn processors() -> io::Result<Vec<usize>> {
    let allowed = sched_getaffinity(None)?;
    let (mut first, mut later) = (Vec::new(), Vec::new());
    for cpu in (0..CpuSet::MAX_CPU).filter(|&cpu| allowed.is_set(cpu)) {
        let path = format!("/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list");
        let siblings = siblings(fs::read_to_string(path).unwrap_or_default().trim());
        let is_later = siblings.iter().any(|sibling| first.contains(sibling));
        if is_later { &mut later } else { &mut first }.push(cpu);
    }
    first.append(&mut later);
    if first.is_empty() {
        return Err(io::Error::other("the kernel lists no processor that this process may use"));
    }
    Ok(first)
}

/// The set with the processor of rank `number`.
pub(crate) fn of_rank(processors: &[usize], number: usize) -> CpuSet {
    let mut set = CpuSet::new();
    set.set(processors[number % processors.len()]);
    set
}

/// Parses a list like `0-1,4`.
fn siblings(list: &str) -> Vec<usize> {
    let range = |part: &str| {
        let (from, to) = part.split_once('-').unwrap_or((part, part));
        Some(from.parse::<usize>().ok()?..=to.parse::<usize>().ok()?.min(CpuSet::MAX_CPU))
    };
    list.split(',').filter_map(range).flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the kernel's lists are parsed, and nonsense does no harm. Method: each form.
    #[test]
    fn lists_of_siblings() {
        assert_eq!(siblings("0-1,4"), [0, 1, 4]);
        assert_eq!(siblings("7"), [7]);
        assert_eq!(siblings("3-2,x,-,5-"), Vec::<usize>::new());
        assert_eq!(siblings(""), Vec::<usize>::new());
    }

    /// Goal: ranks get the processors in turn. Method: more ranks than processors.
    #[test]
    fn processors_in_turn() {
        let set = of_rank(&[2, 5], 3);
        assert!(set.is_set(5) && set.count() == 1);
        assert!(of_rank(&[2, 5], 2).is_set(2));
    }
}
