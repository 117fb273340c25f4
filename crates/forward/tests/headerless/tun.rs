//! Interfaces whose packets a test writes and reads.

#![expect(unsafe_code, reason = "the requests of /dev/net/tun have no safe interface")]

use std::{
    fs::{File, OpenOptions},
    io::{self, Read, Write},
    os::{fd::AsRawFd, unix::fs::OpenOptionsExt},
};

/// `TUNSETIFF`, `TUNSETOFFLOAD`.
const SET_INTERFACE: libc::Ioctl = 0x4004_54ca_u32 as libc::Ioctl;
const SET_OFFLOAD: libc::Ioctl = 0x4004_54d0_u32 as libc::Ioctl;
/// `IFF_NO_PI`, `IFF_VNET_HDR`.
const WITHOUT_PROTOCOL: libc::c_int = 0x1000;
const WITH_OFFLOAD: libc::c_int = 0x4000;
/// `TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6`: the reader takes packets of several segments, without their checksums.
const OFFLOADS: libc::c_ulong = 7;

/// Whether packets have an Ethernet header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Headers {
    Without = 1,
    Ethernet = 2,
}

/// A packet, and what `struct virtio_net_hdr` says about its segments and its checksum.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TunPacket {
    pub(crate) offload: [u8; 10],
    pub(crate) bytes: Vec<u8>,
}

/// An interface of this thread's namespace, which goes when this is dropped.
pub(crate) struct Tun(File);

impl Tun {
    pub(crate) fn new(name: &str, headers: Headers) -> Self {
        Self::open(name, headers as libc::c_int | WITHOUT_PROTOCOL)
    }

    /// Makes one without headers whose packets have a protocol beside them, which is else that of their version of IP.
    pub(crate) fn with_protocol(name: &str) -> Self {
        Self::open(name, Headers::Without as libc::c_int)
    }

    fn open(name: &str, kind: libc::c_int) -> Self {
        let mut options = OpenOptions::new();
        options.read(true).write(true).custom_flags(libc::O_NONBLOCK);
        let file = options.open("/dev/net/tun").expect("/dev/net/tun");
        // SAFETY: `ifreq` is plain data, for which zeros are valid.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        for (to, byte) in request.ifr_name.iter_mut().zip(name.bytes()) {
            *to = libc::c_char::from_ne_bytes([byte]);
        }
        request.ifr_ifru.ifru_flags =
            libc::c_short::try_from(kind | WITH_OFFLOAD).expect("15 bits");
        // SAFETY: the request takes an `ifreq`, which lives until the call returns.
        let made = unsafe { libc::ioctl(file.as_raw_fd(), SET_INTERFACE, &raw mut request) };
        assert_eq!(made, 0, "{name}: {}", io::Error::last_os_error());
        // SAFETY: the request takes a number.
        let set = unsafe { libc::ioctl(file.as_raw_fd(), SET_OFFLOAD, OFFLOADS) };
        assert_eq!(set, 0, "{name}: {}", io::Error::last_os_error());
        Self(file)
    }

    /// Lets a packet arrive. Returns whether the kernel takes it; if so, it has been through tcx.
    pub(crate) fn arrive(&self, packet: &TunPacket) -> bool {
        (&self.0).write(&[&packet.offload[..], &packet.bytes].concat()).is_ok()
    }

    /// The same of a packet with a protocol.
    pub(crate) fn arrive_as(&self, protocol: u16, packet: &[u8]) -> bool {
        // struct tun_pi.
        let information = [&[0; 2], &protocol.to_be_bytes()[..]].concat();
        (&self.0).write(&[&information, &[0; 10][..], packet].concat()).is_ok()
    }

    /// Returns a packet that the interface was given to send.
    pub(crate) fn sent(&self) -> Option<TunPacket> {
        let mut bytes = vec![0; 70_000];
        let length = (&self.0).read(&mut bytes).ok()?;
        let (offload, bytes) = bytes[..length].split_first_chunk().expect("it has a header");
        Some(TunPacket { offload: *offload, bytes: bytes.to_vec() })
    }
}
