//! An opened device: its capabilities, and the port and identifier that its packets leave from.

use std::{
    io,
    net::{IpAddr, Ipv6Addr},
    sync::Arc,
};

use super::{
    NAME,
    config::{OpenError, VerbsConfig},
    sys::{
        Channel, CompletionQueue, Context, DeviceLimits, Domain, LocalPort, QueuePair,
        QueuePairConfig, SEGMENTS_MAX, device_names,
    },
};
use crate::vi::{NicAttributes, Reliability};

/// Descriptors per queue. Enough for unacknowledged sends; a completion queue shared by many VIs must
/// hold the completions of all.
const DESCRIPTORS: u32 = 256;

/// Inline sizes in bytes, tried in this order: devices differ, and do not report theirs.
const INLINE_BYTES: [u32; 3] = [256, 128, 64];

/// The number of VIs that share a completion queue of the device.
const VIS_PER_QUEUE: u32 = 16;

pub(super) struct Device {
    pub(super) context: Arc<Context>,
    pub(super) local_port: LocalPort,
    pub(super) gid: [u8; 16],
    pub(super) limits: DeviceLimits,
    pub(super) attributes: NicAttributes,
    pub(super) descriptors: u32,
    /// The capacity of a completion queue that is shared by several VIs.
    pub(super) completions: u32,
    inline_bytes: u32,
    segments: u32,
}

impl Device {
    pub(super) fn open(config: &VerbsConfig) -> Result<Self, OpenError> {
        let names = device_names().map_err(OpenError::NoRdma)?;
        if names.is_empty() {
            return Err(OpenError::NoRdma(io::ErrorKind::NotFound.into()));
        }
        let candidates = match &config.device {
            Some(name) => std::slice::from_ref(name),
            None => &names[..],
        };

        let found = || names.join(", ");
        let port = config.port;
        for name in candidates {
            let opened = Context::open(name).map_err(OpenError::resource("opening the device"))?;
            let Some(context) = opened else { continue };
            let limits = context.limits(port);
            let limits = limits.map_err(OpenError::resource("asking the device what it can do"))?;
            let index = match config.gid_index {
                Some(index) => Some(index),
                None => gid_of(&context, name, port, &limits, config.ip),
            };
            // Over InfiniBand the local identifier suffices.
            let is_local = config.device.is_some() && !limits.is_ethernet;
            let Some(index) = index.or_else(|| is_local.then_some(0)) else { continue };
            if !limits.is_active {
                return Err(OpenError::PortDown { device: name.clone(), port });
            }
            let gid = context.gid(port, u32::from(index));
            let gid = gid.map_err(OpenError::resource("asking the device for its identifier"))?;
            let local_port = LocalPort { port, gid_index: index, has_gid: limits.is_ethernet };
            return Self::sized(name, context, limits, local_port, gid);
        }

        Err(match &config.device {
            Some(name) if !names.contains(name) => {
                OpenError::NoDevice { name: name.clone(), found: found() }
            }
            _ => OpenError::NoAddress { ip: config.ip, found: found() },
        })
    }

    fn sized(
        name: &str,
        context: Arc<Context>,
        limits: DeviceLimits,
        local_port: LocalPort,
        gid: [u8; 16],
    ) -> Result<Self, OpenError> {
        let weak = |what| OpenError::TooWeak { device: name.to_owned(), what };
        let descriptors = limits.descriptors.min(limits.completions / 2).min(DESCRIPTORS);
        let most_segments = u32::try_from(SEGMENTS_MAX).unwrap_or(1);
        let segments = limits.segments.min(most_segments);
        if descriptors < 16 {
            return Err(weak("16 descriptors per queue"));
        }
        if segments == 0 || limits.reads == 0 {
            return Err(weak("a data segment and an RDMA read"));
        }
        let mut device = Self {
            context,
            local_port,
            gid,
            limits,
            attributes: NicAttributes::named(NAME),
            descriptors,
            completions: limits.completions.min(descriptors * 2 * VIS_PER_QUEUE),
            inline_bytes: 0,
            segments,
        };

        let try_out = |bytes: &u32| device.can_inline(*bytes);
        let inline_bytes = INLINE_BYTES.into_iter().find(try_out);
        device.inline_bytes = inline_bytes.ok_or_else(|| weak("64 inline bytes"))?;
        let wide = |count: u32| usize::try_from(count).unwrap_or(usize::MAX);
        let attributes = &mut device.attributes;
        attributes.transfer_bytes_max = u64::from(limits.message_bytes).min((1 << 31) - 1);
        attributes.inline_bytes_max = u64::from(device.inline_bytes);
        attributes.segments_max = wide(segments);
        attributes.descriptors_max = wide(descriptors);
        attributes.max_reliability = Reliability::ReliableReception;
        attributes.unreliable_bytes = limits.packet_bytes();
        Ok(device)
    }

    pub(super) const fn shape(&self, is_reliable: bool) -> QueuePairConfig {
        QueuePairConfig {
            is_reliable,
            descriptors: self.descriptors,
            segments: self.segments,
            inline_bytes: self.inline_bytes,
        }
    }

    /// Tries out a queue pair with this many inline bytes.
    fn can_inline(&self, inline_bytes: u32) -> bool {
        let attempt = || {
            let domain = Domain::new(&self.context)?;
            let channel = Channel::new(&self.context)?;
            let queue = CompletionQueue::new(&channel, 16)?;
            let shape = QueuePairConfig { inline_bytes, ..self.shape(true) };
            QueuePair::new(&domain, &queue, &queue, &shape)
        };
        attempt().is_ok()
    }
}

/// Finds the identifier that equals the address. If both RoCE versions have one, it is that of version
/// 2, which is routed like any datagram.
fn gid_of(
    context: &Context,
    name: &str,
    port: u8,
    limits: &DeviceLimits,
    ip: IpAddr,
) -> Option<u8> {
    let wanted = match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    };
    let is_it = |index: &u8| {
        let gid = context.gid(port, u32::from(*index));
        gid.is_ok_and(|gid| Ipv6Addr::from(gid) == wanted)
    };
    let is_second = |index: &u8| {
        let path = format!("/sys/class/infiniband/{name}/ports/{port}/gid_attrs/types/{index}");
        std::fs::read_to_string(path).is_ok_and(|kind| kind.trim() == "RoCE v2")
    };
    let count = u8::try_from(limits.gids).unwrap_or(u8::MAX);
    let found: Vec<u8> = (0..count).filter(is_it).collect();
    found.iter().copied().find(is_second).or_else(|| found.first().copied())
}
