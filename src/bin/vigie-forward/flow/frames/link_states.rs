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

    /// Returns what to log of a change.
    pub(super) fn change(&mut self, change: &Change) -> Option<String> {
        let (state, now) = match change {
            Change::Interface(Interface { index, name, is_up, .. }) => {
                (self.of(name)?, Some((*index, *is_up)))
            }
            Change::InterfaceGone { index, name } => {
                // Another one may have its name already.
                (self.of(name).filter(|state| state.index == Some(*index))?, None)
            }
            _ => return None,
        };
        state.index = now.map(|(index, _)| index);
        let is_up = now.is_some_and(|(_, is_up)| is_up);
        let was_up = std::mem::replace(&mut state.is_up, is_up);
        let has_become = match (was_up, is_up) {
            _ if now.is_none() => "is gone; waiting for it",
            (false, true) => "is up",
            (true, false) => "is down or has no carrier: waiting for it",
            _ => return None,
        };
        Some(format!("interface {} {has_become}", state.name))
    }

    fn of(&mut self, name: &str) -> Option<&mut LinkState> {
        self.0.iter_mut().find(|state| state.name == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: each change of an interface is told once, also if it has happened before the flow begins; others are not told. Method: changes by hand,
    /// of an interface that is replaced before the old one is gone, too.
    #[test]
    fn changes_are_told_once() {
        let mut states = LinkStates::new([("a".to_owned(), 3, false)].into_iter());
        let mut told = |change| states.change(&change);
        let interface = |name: &str, index, is_up| {
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
}
