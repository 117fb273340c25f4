//! Changes of an interface, as the kernel's routing socket reports them.

use std::{io, os::fd::OwnedFd};

use rustix::{
    io::Errno,
    net::{
        AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind,
        netlink::SocketAddrNetlink, recv, send, socket_with,
    },
};

use super::{address::MacAddress, error::OpenError};

/// The multicast group of interface changes.
const GROUP_LINK: u32 = 1;
const NEW_LINK: u16 = 16;
const DEL_LINK: u16 = 17;
const GET_LINK: u16 = 18;
const ERROR: u16 = 2;
const IS_REQUEST: u16 = 1;
const ATTRIBUTE_ADDRESS: u16 = 1;
const ATTRIBUTE_MTU: u16 = 4;
const IS_UP: u32 = 1;
const IS_RUNNING: u32 = 0x40;
const HARDWARE_ETHERNET: u16 = 1;
const HARDWARE_LOOPBACK: u16 = 772;
/// Of tun and WireGuard (`ARPHRD_NONE`), and of IPv4 tunnels (`ARPHRD_TUNNEL`).
const HARDWARE_HEADERLESS: [u16; 2] = [0xfffe, 768];
const MESSAGE_HEADER_BYTES: usize = 16;
const BUFFER_BYTES: usize = 32 * 1024;
/// The most messages of one poll, and the most events kept.
const MESSAGES_MAX: usize = 64;

/// A change of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LinkEvent {
    /// It went down, or lost its carrier.
    Down,
    /// It is up, with a carrier.
    Up,
    /// Its MTU changed: the largest payload of a frame, in bytes.
    MtuChanged(u32),
    /// It has another address.
    AddressChanged(MacAddress),
    /// It was removed.
    Removed,
}

/// The state of an interface, as far as it is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct InterfaceState {
    pub(super) index: u32,
    pub(super) address: Option<MacAddress>,
    /// True if its packets have no Ethernet header; its address is then one of zeros.
    pub(super) is_headerless: bool,
    pub(super) mtu: u32,
    pub(super) is_up: bool,
    pub(super) is_gone: bool,
}

/// The content of one message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NetlinkMessage {
    Is(InterfaceState),
    Gone(u32),
    Failed(i32),
}

/// Watches one interface of the network namespace in which it was made.
#[derive(Debug)]
pub(super) struct Monitor {
    socket: OwnedFd,
    buffer: Vec<u8>,
    now: InterfaceState,
    /// The events not yet reported.
    events: std::collections::VecDeque<LinkEvent>,
}

impl Monitor {
    pub(super) fn open(name: &str) -> Result<Self, OpenError> {
        let failed = |source: Errno| OpenError::Kernel {
            what: "asking for the interface",
            source: source.into(),
        };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket =
            socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None).map_err(failed)?;
        let index = match rustix::net::netdevice::name_to_index(&socket, name) {
            Err(Errno::NODEV | Errno::INVAL | Errno::NAMETOOLONG) => {
                return Err(OpenError::NoInterface { name: name.to_owned() });
            }
            index => index.map_err(failed)?,
        };
        // From here on, changes are received; the state so far is asked for.
        bind(&socket, &SocketAddrNetlink::new(0, GROUP_LINK)).map_err(failed)?;
        let now = InterfaceState { index, ..InterfaceState::default() };
        let buffer = vec![0; BUFFER_BYTES];
        let mut this = Self { socket, buffer, now, events: std::collections::VecDeque::new() };
        this.ask()
            .map_err(|source| OpenError::Kernel { what: "asking for the interface", source })?;
        // The kernel answers within the call that asks.
        this.poll()
            .map_err(|source| OpenError::Kernel { what: "asking for the interface", source })?;
        this.events.clear();
        if this.now.is_gone {
            return Err(OpenError::NoInterface { name: name.to_owned() });
        }
        if this.now.address.is_none() {
            return Err(OpenError::NotEthernet { name: name.to_owned() });
        }
        Ok(this)
    }

    pub(super) const fn descriptor(&self) -> &OwnedFd {
        &self.socket
    }

    pub(super) const fn interface(&self) -> &InterfaceState {
        &self.now
    }

    /// Returns the oldest change that was not reported yet.
    pub(super) fn next_event(&mut self) -> Option<LinkEvent> {
        self.events.pop_front()
    }

    pub(super) fn put_back(&mut self, event: LinkEvent) {
        self.events.push_front(event);
    }

    pub(super) fn has_event(&self) -> bool {
        !self.events.is_empty()
    }

    fn ask(&self) -> io::Result<()> {
        let mut request = [0; 32];
        request[..4].copy_from_slice(&32_u32.to_ne_bytes());
        request[4..6].copy_from_slice(&GET_LINK.to_ne_bytes());
        request[6..8].copy_from_slice(&IS_REQUEST.to_ne_bytes());
        request[20..24].copy_from_slice(&self.now.index.to_ne_bytes());
        send(&self.socket, &request, SendFlags::DONTWAIT)?;
        Ok(())
    }

    /// Takes in what the kernel has reported since the last call.
    pub(super) fn poll(&mut self) -> io::Result<()> {
        for _ in 0..MESSAGES_MAX {
            match recv(&self.socket, self.buffer.as_mut_slice(), RecvFlags::DONTWAIT) {
                Ok((length, _)) => {
                    let mut said = Vec::new();
                    read(&self.buffer[..length.min(BUFFER_BYTES)], |what| said.push(what));
                    said.into_iter().for_each(|what| self.take(what));
                }
                Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR) => {}
                // Messages were lost: only the current state matters.
                Err(Errno::NOBUFS) => self.ask()?,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn take(&mut self, said: NetlinkMessage) {
        let before = self.now;
        match said {
            NetlinkMessage::Is(now) if now.index == before.index => {
                // A message may leave out what has not changed.
                let mtu = if now.mtu == 0 { before.mtu } else { now.mtu };
                self.now = InterfaceState { mtu, address: now.address.or(before.address), ..now };
            }
            NetlinkMessage::Gone(index) if index == before.index => self.now.is_gone = true,
            NetlinkMessage::Failed(code) if code == -Errno::NODEV.raw_os_error() => {
                self.now.is_gone = true
            }
            _ => {}
        }

        let now = self.now;
        if now.is_gone {
            if !before.is_gone {
                self.events.push_back(LinkEvent::Removed);
            }
            return;
        }

        if now.mtu != before.mtu {
            self.events.push_back(LinkEvent::MtuChanged(now.mtu));
        }
        if let Some(address) = now.address
            && now.address != before.address
        {
            self.events.push_back(LinkEvent::AddressChanged(address));
        }
        if now.is_up != before.is_up {
            self.events.push_back(if now.is_up { LinkEvent::Up } else { LinkEvent::Down });
        }

        // No caller may ask for events: keep the newest.
        while self.events.len() > MESSAGES_MAX {
            self.events.pop_front();
        }
    }
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().map(|bytes| u16::from_ne_bytes(*bytes))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|bytes| u32::from_ne_bytes(*bytes))
}

/// Parses the messages of one packet.
fn read(mut bytes: &[u8], mut take: impl FnMut(NetlinkMessage)) {
    while let Some(length) = u32_at(bytes, 0).and_then(|length| usize::try_from(length).ok()) {
        let Some(message) = bytes.get(..length).filter(|_| length >= MESSAGE_HEADER_BYTES) else {
            return;
        };
        if let Some(said) = read_message(message) {
            take(said);
        }
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
}

fn read_message(message: &[u8]) -> Option<NetlinkMessage> {
    let body = message.get(MESSAGE_HEADER_BYTES..)?;
    match u16_at(message, 4)? {
        ERROR => u32_at(body, 0).map(|code| NetlinkMessage::Failed(code.cast_signed())),
        kind @ (NEW_LINK | DEL_LINK) => {
            // Messages of families other than AF_UNSPEC report something else: an interface that leaves its
            // bridge is "deleted".
            if *body.first()? != 0 {
                return None;
            }
            let hardware = u16_at(body, 2)?;
            let index = u32_at(body, 4)?;
            let flags = u32_at(body, 8)?;
            if kind == DEL_LINK {
                return Some(NetlinkMessage::Gone(index));
            }
            let is_up = flags & (IS_UP | IS_RUNNING) == IS_UP | IS_RUNNING;
            let is_headerless = HARDWARE_HEADERLESS.contains(&hardware);
            let address = is_headerless.then_some(MacAddress([0; 6]));
            let mut now = InterfaceState {
                index,
                address,
                is_headerless,
                is_up,
                ..InterfaceState::default()
            };
            let mut attributes = body.get(16..)?;
            while let Some(length) = u16_at(attributes, 0).map(usize::from) {
                let Some(attribute) = attributes.get(..length).filter(|_| length >= 4) else {
                    break;
                };
                match u16_at(attribute, 2)? {
                    ATTRIBUTE_ADDRESS
                        if matches!(hardware, HARDWARE_ETHERNET | HARDWARE_LOOPBACK) =>
                    {
                        let address: Option<&[u8; 6]> = attribute[4..].try_into().ok();
                        now.address = address.map(|address| MacAddress(*address));
                    }
                    ATTRIBUTE_MTU => now.mtu = u32_at(attribute, 4)?,
                    _ => {}
                }
                attributes = attributes.get(length.next_multiple_of(4)..).unwrap_or_default();
            }
            Some(NetlinkMessage::Is(now))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the loopback interface, which every namespace has, is known, and names of no interface are
    /// refused. Method: open both.
    #[test]
    fn interfaces_are_found_by_name() {
        let monitor = Monitor::open("lo").expect("every namespace has one");
        assert_eq!(monitor.interface().address, Some(MacAddress([0; 6])));
        assert!(monitor.interface().mtu > 0 && !monitor.interface().is_gone);
        for name in ["", "no such one", "a name that is far longer than the kernel allows"] {
            let error = Monitor::open(name).expect_err("no interface");
            assert!(matches!(error, OpenError::NoInterface { .. }), "{name}: {error}");
        }
    }

    /// Goal: no bytes from the socket make the parser panic or loop. Method: random bytes, and a true message
    /// with bytes changed, from 64 seeds.
    #[test]
    fn any_bytes_are_read_safely() {
        let mut message = vec![0_u8; 56];
        message[..4].copy_from_slice(&56_u32.to_ne_bytes());
        message[4..6].copy_from_slice(&NEW_LINK.to_ne_bytes());
        message[18..20].copy_from_slice(&HARDWARE_ETHERNET.to_ne_bytes());
        message[20..24].copy_from_slice(&7_u32.to_ne_bytes());
        message[32..36].copy_from_slice(&[10, 0, 1, 0].map(|byte: u8| byte));
        message[36..42].copy_from_slice(&[2; 6]);
        message[44..48].copy_from_slice(&[8, 0, 4, 0]);
        message[48..52].copy_from_slice(&9000_u32.to_ne_bytes());
        let mut said = Vec::new();
        read(&message, |what| said.push(what));
        let is = InterfaceState {
            index: 7,
            address: Some(MacAddress([2; 6])),
            is_headerless: false,
            mtu: 9000,
            is_up: false,
            is_gone: false,
        };
        assert_eq!(said, [NetlinkMessage::Is(is)]);
        for seed in 0..64 {
            let mut rng = fastrand::Rng::with_seed(seed);
            for _ in 0..500 {
                let mut bytes = message.repeat(rng.usize(1..3));
                for _ in 0..rng.usize(1..6) {
                    let at = rng.usize(..bytes.len());
                    bytes[at] = if rng.bool() { rng.u8(..) } else { rng.u8(..16) };
                }
                bytes.truncate(rng.usize(..=bytes.len()));
                let mut count = 0;
                read(&bytes, |_| count += 1);
                assert!(count <= 7, "seed {seed}: {count} messages in {} bytes", bytes.len());
            }
        }
    }
}
