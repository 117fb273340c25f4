//! Which interfaces of a flow are up, without I/O: the host's links do not exist beside a program that handles all frames itself.

use crate::kernel::{Change, Interface};

/// The interfaces of a flow, as they were told last.
#[derive(Debug)]
pub(super) struct LinkStates(Vec<LinkState>);

#[derive(Debug)]
struct LinkState {
    name: String,
    /// Its index; `None` while the interface is gone.
    index: Option<u32>,
    is_up: bool,
}

impl LinkStates {
    /// Starts from names, indices, and whether each is up.
    pub(super) fn new(found: impl Iterator<Item = (String, u32, bool)>) -> Self {
        let state = |(name, index, is_up)| LinkState { name, index: Some(index), is_up };
        Self(found.map(state).collect())
    }

    /// Returns what to log of a change. Of an interface that is renamed, that it is gone, and perhaps that another one is there.
    pub(super) fn change(&mut self, change: &Change) -> Vec<String> {
        match change {
            Change::Interface(Interface { index, name, is_up, .. }) => {
                let is_renamed =
                    |one: &&mut LinkState| one.index == Some(*index) && one.name != *name;
                let renamed = self.0.iter_mut().find(is_renamed);
                let gone = renamed.map(|one| one.lose(&format!(" (its name is {name} now)")));
                let changed = self.of(name).and_then(|one| one.find(*index, *is_up));
                gone.into_iter().chain(changed).collect()
            }
            Change::InterfaceGone { index, name } => {
                // Another one may have its name already.
                let gone = self.of(name).filter(|one| one.index == Some(*index));
                gone.map(|one| one.lose("")).into_iter().collect()
            }
            _ => Vec::new(),
        }
    }

    fn of(&mut self, name: &str) -> Option<&mut LinkState> {
        self.0.iter_mut().find(|state| state.name == name)
    }
}

impl LinkState {
    fn lose(&mut self, because: &str) -> String {
        (self.index, self.is_up) = (None, false);
        format!("interface {} is gone{because}; waiting for it", self.name)
    }

    fn find(&mut self, index: u32, is_up: bool) -> Option<String> {
        self.index = Some(index);
        let has_become = match (std::mem::replace(&mut self.is_up, is_up), is_up) {
            (false, true) => "is up",
            (true, false) => "is down or has no carrier: waiting for it",
            _ => return None,
        };
        Some(format!("interface {} {has_become}", self.name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interface(name: &str, index: u32, is_up: bool) -> Change {
        Change::Interface(Interface {
            index,
            name: name.to_owned(),
            mac: None,
            mtu: 1500,
            is_up,
            is_pair: false,
            is_headerless: false,
            is_without_tcx: false,
            vlan_of: None,
        })
    }

    /// Goal: each change of an interface is told once, also if it has happened before the flow begins; others are not told. Method: changes by hand,
    /// of an interface that is replaced before the old one is gone, too.
    #[test]
    fn changes_are_told_once() {
        let mut states = LinkStates::new([("a".to_owned(), 3, false)].into_iter());
        let mut told = |change| {
            let mut said = states.change(&change);
            assert!(said.len() <= 1, "{said:?}");
            said.pop()
        };
        let gone = |index| Change::InterfaceGone { index, name: "a".to_owned() };
        let (up, down) = ("interface a is up", "interface a is down or has no carrier");
        assert_eq!(told(interface("a", 3, false)), None);
        assert_eq!(told(interface("a", 3, true)).as_deref(), Some(up));
        assert_eq!((told(interface("a", 3, true)), told(interface("b", 4, false))), (None, None));
        assert!(told(interface("a", 3, false)).is_some_and(|said| said.starts_with(down)));
        assert_eq!(told(interface("a", 5, true)).as_deref(), Some(up));
        assert_eq!(told(gone(3)), None);
        assert_eq!(told(gone(5)).as_deref(), Some("interface a is gone; waiting for it"));
        assert_eq!((told(gone(5)), told(interface("a", 6, false))), (None, None));
        assert_eq!(told(interface("a", 6, true)).as_deref(), Some(up));
    }
    /// Goal: an interface that is renamed is gone, once, and one that gets the name of another one of the flow is told, too. Method: changes by hand.
    #[test]
    fn renamed_interfaces_are_gone() {
        let found = [("a", 3), ("b", 4)].map(|(name, index)| (name.to_owned(), index, true));
        let mut states = LinkStates::new(found.into_iter());
        let mut told = |index, name: &str| states.change(&interface(name, index, true));
        let gone = |name: &str, now: &str| {
            format!("interface {name} is gone (its name is {now} now); waiting for it")
        };
        assert_eq!(told(3, "c"), [gone("a", "c")]);
        assert_eq!((told(3, "c"), told(4, "b")), (vec![], vec![]));
        assert_eq!(told(4, "a"), [gone("b", "a"), "interface a is up".to_owned()]);
        assert_eq!(told(3, "b"), ["interface b is up"]);
        let deleted = Change::InterfaceGone { index: 3, name: "b".to_owned() };
        assert_eq!(states.change(&deleted), ["interface b is gone; waiting for it"]);
    }
}
