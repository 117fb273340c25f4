//! Two NICs with connected VIs, and the data they exchange.

use std::io::IoSlice;

use vigie_detect::Instant;
use vigie_via::{
    software_nic::SoftwareNicConfig,
    vi::{
        Connect, Data, DisconnectReason, MemoryAttributes, NicEvent, Operation, Provider, Queue,
        ReceiveDescriptor, Region, Reliability, RemoteSegment, SendDescriptor, Status,
        ViAttributes, ViId,
    },
};

use crate::network::{MILLISECOND, Network, SECOND, SimNic};

pub(crate) const REGION_BYTES: usize = 1 << 18;

/// A VI of a NIC, with memory that the peer may write and read.
#[derive(Clone, Debug)]
pub(crate) struct End {
    pub(crate) nic: usize,
    pub(crate) vi: ViId,
    pub(crate) region: Region,
}

pub(crate) struct Cluster {
    pub(crate) network: Network,
    pub(crate) nics: Vec<SimNic>,
    pub(crate) events: Vec<Vec<NicEvent>>,
}

impl Cluster {
    pub(crate) fn new(network: Network, count: usize, config: SoftwareNicConfig) -> Self {
        let nics = (0..count).map(|_| network.nic(3, config)).collect();
        Self { network, nics, events: vec![Vec::new(); count] }
    }

    /// Lets a little time pass.
    pub(crate) fn step(&mut self) {
        let now = Instant::from_nanos(self.network.now());
        for (nic, events) in self.nics.iter_mut().zip(&mut self.events) {
            nic.progress(now);
            events.extend(std::iter::from_fn(|| nic.next_event()));
        }
        self.network.step(MILLISECOND / 2);
    }

    /// Lets time pass until a condition holds, for at most `limit`.
    pub(crate) fn until(&mut self, limit: u64, mut is_so: impl FnMut(&mut Self) -> bool) -> bool {
        let end = self.network.now() + limit;
        while self.network.now() < end {
            if is_so(self) {
                return true;
            }
            self.step();
        }
        false
    }

    pub(crate) fn end(&mut self, nic: usize, reliability: Reliability) -> End {
        let provider = &mut self.nics[nic];
        let tag = provider.create_tag();
        let attributes = ViAttributes {
            reliability,
            tag,
            send_cq: None,
            receive_cq: None,
            allows_write: true,
            allows_read: true,
        };
        let vi = provider.create_vi(attributes).expect("a VI");
        let rights = MemoryAttributes { tag, allows_write: true, allows_read: true };
        let region = provider.allocate(REGION_BYTES, rights).expect("memory");
        End { nic, vi, region }
    }

    /// Connects a VI of one NIC with one of another.
    pub(crate) fn connect(&mut self, one: usize, other: usize, level: Reliability) -> [End; 2] {
        let ends = [self.end(one, level), self.end(other, level)];
        let deadline = Instant::from_nanos(self.network.now() + 60 * SECOND);
        for (this, peer) in [(0, 1), (1, 0)] {
            let address = self.nics[ends[peer].nic].address();
            let nic = &mut self.nics[ends[this].nic];
            nic.connect_peer(Connect::new(ends[this].vi, &address, b"pair", deadline))
                .expect("asked");
        }
        for end in &ends {
            let wanted = NicEvent::Connected { vi: end.vi, greeting: Vec::new() };
            let nic = end.nic;
            let came = self.until(60 * SECOND, |cluster| cluster.events[nic].contains(&wanted));
            assert!(came, "no connection: {:?}", self.events);
        }
        ends
    }

    pub(crate) fn broken(&self, end: &End) -> Option<DisconnectReason> {
        self.events[end.nic].iter().find_map(|event| match event {
            NicEvent::Broken { vi, reason } if *vi == end.vi => Some(*reason),
            _ => None,
        })
    }

    /// Sends a word from one end to the other.
    pub(crate) fn says(&mut self, from: &End, to: &End, word: u64) -> bool {
        let receive = ReceiveDescriptor { cookie: 0, segments: &[] };
        self.nics[to.nic].post_receive(to.vi, &receive).expect("room");
        let bytes = word.to_le_bytes();
        let write = SendDescriptor {
            operation: Operation::RdmaWrite,
            cookie: word,
            immediate: Some(1),
            is_signaled: true,
            remote: Some(RemoteSegment { key: to.region.key, offset: 64 }),
            data: Data::Inline(&[IoSlice::new(&bytes)]),
        };
        if self.nics[from.nic].post_send(from.vi, &write).is_err() {
            return false;
        }
        let (nic, vi) = (to.nic, to.vi);
        let mut found = None;
        self.until(60 * SECOND, |cluster| {
            found = cluster.nics[nic].poll_queue(vi, Queue::Receive);
            found.is_some()
        });
        let (nic, vi) = (from.nic, from.vi);
        let mut sent = None;
        self.until(60 * SECOND, |cluster| {
            sent = cluster.nics[nic].poll_queue(vi, Queue::Send);
            sent.is_some()
        });
        let is_done = |found: &vigie_via::vi::Completion| found.status == Status::Done;
        found.as_ref().is_some_and(is_done)
            && sent.as_ref().is_some_and(is_done)
            && to.region.memory.load(64).is_ok_and(|found| found == word.to_le())
    }
}
