//! Tells the hosts of the outside network where the public address is, which otherwise keep the Ethernet address of the router before this one.

use std::{cell::Cell, io, net::Ipv4Addr, rc::Rc, time::Duration};

use vigie::{
    Instant,
    via::link::{EtherType, Link, MacAddress},
};

use super::{
    probe::{announcement, probe},
    public_side::{AddressReach, PublicSide},
};
use crate::kernel::{Change, Interface};

/// The number of announcements, and the time between them (RFC 5227, section 1.1).
const ANNOUNCEMENTS: u32 = 2;
const ANNOUNCE_INTERVAL: Duration = Duration::from_secs(2);

/// The announcements of a public address that this host has not got itself.
pub(super) struct Announcements {
    outside: String,
    address: Ipv4Addr,
    /// Asks before it announces: the pipeline hears an answer, and logs it.
    asks: bool,
    /// Index, Ethernet address and state of the interface, as they were told last.
    seen: Option<(u32, Option<[u8; 6]>, bool)>,
    left: u32,
    next_at: Instant,
    /// Opened before rights are given up, and again when the interface is another one.
    link: Option<Link>,
    /// Set when the pipeline has attached the interface again.
    reopened: Rc<Cell<bool>>,
}

impl Announcements {
    /// Announces an address as soon as the interface is up. Elsewhere than in its network, a router with proxy ARP may answer, so it is not asked there.
    pub(super) fn new(outside: String, public: PublicSide) -> Self {
        // A fault is said when it is opened to send.
        let link = open(&outside).ok();
        Self {
            outside,
            address: public.address,
            asks: public.reach == AddressReach::Outside,
            seen: None,
            left: ANNOUNCEMENTS,
            next_at: Instant::from_nanos(0),
            link,
            reopened: Rc::default(),
        }
    }

    /// Returns what is to be set whenever the pipeline has attached the interface again.
    pub(super) fn reopened(&self) -> Rc<Cell<bool>> {
        Rc::clone(&self.reopened)
    }

    /// Follows the interface. Another one of its name is announced once the pipeline has attached it.
    pub(super) fn follow(&mut self, change: &Change) {
        match change {
            Change::Interface(Interface { index, name, mac, is_up, .. })
                if *name == self.outside =>
            {
                let found = (*index, *mac, *is_up);
                let is_same = self.seen.is_some_and(|(seen, ..)| seen == *index);
                if is_same && self.seen != Some(found) {
                    self.restart();
                }
                self.seen = Some(found);
            }
            Change::InterfaceGone { index, .. } => {
                if let Some((_, _, is_up)) = self.seen.as_mut().filter(|(seen, ..)| seen == index) {
                    *is_up = false;
                }
            }
            _ => {}
        }
    }

    fn restart(&mut self) {
        (self.left, self.next_at) = (ANNOUNCEMENTS, Instant::from_nanos(0));
    }

    /// Sends what is due. Returns what to log.
    pub(super) fn tick(&mut self, now: Instant) -> Option<String> {
        if self.reopened.take() {
            self.link = None;
            self.restart();
        }
        if let Some(link) = &mut self.link {
            // So it knows its Ethernet address, and whether it is up.
            while let Ok(Some(_)) = link.next_event() {}
        }
        let is_up = self.seen.is_some_and(|(_, _, is_up)| is_up);
        if !is_up || self.left == 0 || now < self.next_at {
            return None;
        }
        let is_first = self.left == ANNOUNCEMENTS;
        self.left -= 1;
        self.next_at = now + ANNOUNCE_INTERVAL;
        let sent = self.send(is_first && self.asks);
        sent.err().map(|error| {
            format!(
                "{} could not be announced at `{}`, so hosts there may take some time to find it: {error}",
                self.address, self.outside
            )
        })
    }

    fn send(&mut self, asks: bool) -> io::Result<()> {
        let link = match &mut self.link {
            Some(link) => link,
            none => none.insert(open(&self.outside)?),
        };
        let own = link.address();
        let question = asks.then(|| probe(own, self.address));
        for packet in question.iter().chain([&announcement(own, self.address)]) {
            link.send(MacAddress::BROADCAST, &[packet]).map_err(io::Error::other)?;
        }
        link.flush().map_err(io::Error::other)
    }
}

fn open(outside: &str) -> io::Result<Link> {
    let builder = Link::builder(outside).ether_type(EtherType::ARP);
    builder.receive_frames(1).send_frames(4).open().map_err(io::Error::other)
}
