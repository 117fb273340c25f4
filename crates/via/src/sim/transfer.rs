//! The path of data: departures of send descriptors, arrivals, completions.

use super::{
    network::{NetworkState, NotifyPeer},
    objects::{Nic, PostedSend, SendStage, SimConnection, SimVi},
    packet::{NicIndex, PacketBody, SimEvent, SimPacket, ViEndpoint},
};
use crate::vi::{
    Completion, DisconnectReason, LocalSegment, Operation, Queue, Reliability, RemoteSegment,
    Status, ViId, ViState,
    objects::{Access, PostedData, PostedReceive},
};

impl NetworkState {
    /// Schedules the departure of a VI's next descriptor.
    pub(super) fn wake_sender(&mut self, end: ViEndpoint) {
        let Some(vi) = self.vi(end) else { return };
        if vi.is_departing || vi.is_halted {
            return;
        }
        vi.is_departing = true;
        let time = self.nics[end.nic].busy_until.max(self.now());
        self.schedule(time, SimEvent::Depart { nic: end.nic, vi: end.vi });
    }

    /// Sends the next descriptor of a VI.
    pub(super) fn depart(&mut self, nic: NicIndex, vi: ViId) {
        let end = ViEndpoint { nic, vi };
        let is_busy = self.nics[nic].busy_until > self.now();
        let Some(vi) = self.vi(end) else { return };
        vi.is_departing = false;
        if is_busy {
            self.wake_sender(end);
            return;
        }
        let Some(connection) = vi.connection else { return };
        if vi.is_halted {
            return;
        }
        let next = vi.sends.partition_point(|posted| posted.stage != SendStage::Waiting);
        if let Some(packet) = self.carry_out(end, connection, next) {
            self.transmit(packet);
        }
        self.settle(end);
        let waits =
            |vi: &mut SimVi| vi.sends.back().is_some_and(|last| last.stage == SendStage::Waiting);
        if self.vi(end).is_some_and(waits) {
            self.wake_sender(end);
        }
    }

    fn carry_out(
        &mut self,
        end: ViEndpoint,
        connection: SimConnection,
        next: usize,
    ) -> Option<SimPacket> {
        let nic = &self.nics[end.nic];
        let vi = nic.vis.get(&end.vi)?;
        let posted = vi.sends.get(next)?;
        let made = make_body(nic, vi, posted, vi.slot_at(next));
        let is_reliable = vi.is_reliable();
        let vi = self.vi(end)?;
        let posted = vi.sends.get_mut(next)?;
        match made {
            Ok((mut body, length)) => {
                posted.length = length;
                posted.stage =
                    if is_reliable { SendStage::Departed } else { SendStage::Over(Status::Done) };
                if let (PacketBody::Data { number, .. }, Some(connection)) =
                    (&mut body, vi.connection.as_mut())
                    && !is_reliable
                {
                    connection.sent += 1;
                    *number = connection.sent;
                }
                Some(connection.packet(end, body))
            }

            Err(status) => {
                posted.stage = SendStage::Over(status);
                vi.is_halted = is_reliable;
                None
            }
        }
    }

    /// Completes the finished descriptors at the head of the send queue. If one failed, a reliable
    /// connection breaks.
    fn settle(&mut self, end: ViEndpoint) {
        loop {
            let Some(vi) = self.vi(end) else { return };
            let Some(SendStage::Over(status)) = vi.sends.front().map(|posted| posted.stage) else {
                return;
            };
            let Some(posted) = vi.sends.pop_front() else { return };
            let breaks = !status.is_done() && vi.is_reliable();
            self.complete_send(end, &posted, status);
            if breaks {
                self.break_vi(end, DisconnectReason::DescriptorFailed, NotifyPeer::Yes);
                return;
            }
        }
    }

    /// Flushes everything posted. It is unknown whether data that has departed arrived.
    pub(super) fn flush(&mut self, end: ViEndpoint) {
        let Some(vi) = self.vi(end) else { return };
        let (sends, receives) = (std::mem::take(&mut vi.sends), std::mem::take(&mut vi.receives));
        for posted in sends {
            let status = match posted.stage {
                SendStage::Waiting => Status::Flushed,
                SendStage::Departed => Status::TransportError,
                SendStage::Over(status) => status,
            };
            self.complete_send(end, &posted, status);
        }
        for posted in receives {
            let cookie = posted.cookie;
            let flushed = Completion::new(end.vi, Queue::Receive, cookie, Status::Flushed);
            self.complete(end.nic, flushed);
        }
    }

    /// Completes a send descriptor: reported if signaled or failed.
    fn complete_send(&mut self, end: ViEndpoint, posted: &PostedSend, status: Status) {
        let nic = &mut self.nics[end.nic];
        let Some(vi) = nic.vis.get_mut(&end.vi) else { return };
        if vi.core.complete_send(&mut nic.objects, posted, status) {
            self.wake_host(end.nic);
        }
    }

    // -------------------------------------------------------------- arrivals

    pub(super) fn arrive(&mut self, packet: SimPacket) {
        let SimPacket { from, to, vi, connection_id, body } = packet;
        let end = ViEndpoint { nic: to, vi: vi.unwrap_or(ViId(0)) };
        match body {
            PacketBody::Call { caller, discriminator, is_peer } => {
                self.handle_call(to, caller, discriminator, is_peer);
            }
            PacketBody::Over(reason) => self.over(to, from, vi, connection_id, reason),
            PacketBody::Agree { greeting } => self.agreed_to(end, connection_id, from, greeting),
            PacketBody::Agreed => self.agreed(end, connection_id, from),
            body => {
                let is_current = |connection: SimConnection| {
                    connection.connection_id == connection_id && connection.peer == from
                };
                if self.vi(end).is_some_and(|vi| vi.connection.is_some_and(is_current)) {
                    self.arrive_connected(end, body);
                } else {
                    self.counts.stale += 1;
                }
            }
        }
    }

    fn arrive_connected(&mut self, end: ViEndpoint, body: PacketBody) {
        match body {
            PacketBody::Data { number: 0, slot, place, bytes, immediate, .. } => {
                self.receive_reliably(end, slot, place, &bytes, immediate);
            }
            PacketBody::Data { number, place, bytes, immediate, is_copy, .. } => {
                self.count(end, number, is_copy);
                let received = self.receive(end, place, &bytes, immediate);
                let is_undescribed = received == Err(Status::RemoteDescriptorError);
                self.counts.undescribed += u64::from(is_undescribed);
            }
            PacketBody::Read { slot, place, length } => self.answer_read(end, slot, place, length),
            PacketBody::Answer { slot, result } => self.finish_read(end, slot, result),
            PacketBody::Ack { slot, status } => self.finish(end, slot, status),
            PacketBody::Call { .. }
            | PacketBody::Over(_)
            | PacketBody::Agree { .. }
            | PacketBody::Agreed => {}
        }
    }

    /// Counts the faults that the network applied to unreliable data.
    fn count(&mut self, end: ViEndpoint, number: u64, is_copy: bool) {
        let Some(connection) = self.vi(end).and_then(|vi| vi.connection.as_mut()) else { return };
        let is_late = number < connection.newest;
        connection.newest = connection.newest.max(number);
        self.counts.duplicated += u64::from(is_copy);
        self.counts.reordered += u64::from(is_late && !is_copy);
    }

    fn reply(&mut self, end: ViEndpoint, body: PacketBody) {
        let Some(connection) = self.vi(end).and_then(|vi| vi.connection) else { return };
        self.transmit(connection.packet(end, body));
    }

    fn receive_reliably(
        &mut self,
        end: ViEndpoint,
        slot: u64,
        place: Option<RemoteSegment>,
        bytes: &[u8],
        immediate: Option<i32>,
    ) {
        let received = self.receive(end, place, bytes, immediate);
        let Some(reliability) = self.vi(end).map(|vi| vi.core.attributes.reliability) else {
            return;
        };
        let status = match received {
            Err(status) if reliability == Reliability::ReliableReception => status,
            _ => Status::Done,
        };
        self.reply(end, PacketBody::Ack { slot, status });
        if received.is_err() {
            self.break_vi(end, DisconnectReason::DescriptorFailed, NotifyPeer::Yes);
        }
    }

    /// Writes arrived data to its destination, and consumes a receive descriptor if required. An error
    /// is the status of the sender's descriptor.
    fn receive(
        &mut self,
        end: ViEndpoint,
        place: Option<RemoteSegment>,
        bytes: &[u8],
        immediate: Option<i32>,
    ) -> Result<(), Status> {
        let nic = &mut self.nics[end.nic];
        let Some(vi) = nic.vis.get(&end.vi) else { return Err(Status::TransportError) };
        let length = to_u64(bytes.len());
        let written = place
            .map(|place| nic.objects.remote(&vi.core.attributes, place, length, Access::Write))
            .transpose()?;
        if place.is_some() && immediate.is_none() {
            return written.map_or(Ok(()), |memory| {
                memory
                    .put(place.map_or(0, |place| place.offset), bytes)
                    .map_err(|_| Status::RdmaProtectionError)
            });
        }

        let posted = vi.receives.front().ok_or(Status::RemoteDescriptorError)?;
        let result = match (written, place) {
            (Some(memory), Some(place)) => {
                memory.put(place.offset, bytes).map_err(|_| Status::RdmaProtectionError)
            }
            _ => scatter(nic, vi, &posted.segments, bytes),
        };

        let mut completion = Completion::new(end.vi, Queue::Receive, posted.cookie, Status::Done);
        match result {
            Ok(()) => {
                completion.length = length;
                completion.immediate = immediate;
            }
            Err(status) => completion.status = status,
        }

        if let Some(vi) = nic.vis.get_mut(&end.vi) {
            vi.receives.pop_front();
        }
        self.complete(end.nic, completion);
        match result {
            // The receiver's own descriptor was invalid.
            Err(Status::ProtectionError) => Err(Status::RemoteDescriptorError),
            other => other,
        }
    }

    fn answer_read(&mut self, end: ViEndpoint, slot: u64, place: RemoteSegment, length: u64) {
        let nic = &self.nics[end.nic];
        let Some(vi) = nic.vis.get(&end.vi) else { return };
        let result = nic.objects.remote(&vi.core.attributes, place, length, Access::Read).and_then(
            |memory| {
                let mut bytes = Vec::new();
                let length = usize::try_from(length).map_err(|_| Status::RdmaProtectionError)?;
                let taken = memory.take_onto(place.offset, length, &mut bytes);
                taken.map(|()| bytes).map_err(|_| Status::RdmaProtectionError)
            },
        );
        let has_failed = result.is_err();
        self.reply(end, PacketBody::Answer { slot, result });
        if has_failed {
            self.break_vi(end, DisconnectReason::DescriptorFailed, NotifyPeer::Yes);
        }
    }

    fn finish_read(&mut self, end: ViEndpoint, slot: u64, result: Result<Vec<u8>, Status>) {
        let nic = &self.nics[end.nic];
        let Some(vi) = nic.vis.get(&end.vi) else { return };
        let Some(posted) = vi.index_of(slot).and_then(|index| vi.sends.get(index)) else { return };
        let status = match (result, &posted.data) {
            (Ok(bytes), PostedData::Segments(segments)) => {
                scatter(nic, vi, segments, &bytes).err().unwrap_or(Status::Done)
            }
            (Ok(_), PostedData::Inline(_)) => Status::FormatError,
            (Err(status), _) => status,
        };
        self.finish(end, slot, status);
    }

    fn finish(&mut self, end: ViEndpoint, slot: u64, status: Status) {
        let Some(vi) = self.vi(end) else { return };
        let Some(posted) = vi.index_of(slot).and_then(|index| vi.sends.get_mut(index)) else {
            return;
        };
        posted.stage = SendStage::Over(status);
        self.settle(end);
    }

    /// Adds a receive descriptor to a VI's queue; in the error state, it is flushed at once.
    pub(super) fn post_receive(&mut self, end: ViEndpoint, posted: PostedReceive) {
        let Some(vi) = self.vi(end) else { return };
        if vi.core.state == ViState::Error {
            let completion =
                Completion::new(end.vi, Queue::Receive, posted.cookie, Status::Flushed);
            self.complete(end.nic, completion);
        } else {
            vi.receives.push_back(posted);
        }
    }
}

/// Returns what a descriptor sends and how many bytes it transfers, or what is wrong with it on this side.
fn make_body(
    nic: &Nic,
    vi: &SimVi,
    posted: &PostedSend,
    slot: u64,
) -> Result<(PacketBody, u64), Status> {
    let is_read = posted.operation == Operation::RdmaRead;
    let needs_place = posted.operation != Operation::Send;
    let is_inline = matches!(posted.data, PostedData::Inline(_));
    let reads_badly = is_read
        && (is_inline
            || posted.immediate.is_some()
            || !nic.attributes.has_rdma_read
            || !vi.is_reliable());
    if posted.remote.is_some() != needs_place || reads_badly {
        return Err(Status::FormatError);
    }
    let length = match &posted.data {
        PostedData::Inline(bytes) => to_u64(bytes.len()),
        PostedData::Segments(segments) => segments
            .iter()
            .try_fold(0_u64, |sum, segment| sum.checked_add(segment.length))
            .ok_or(Status::LengthError)?,
    };
    if length > nic.attributes.transfer_bytes_max {
        return Err(Status::LengthError);
    }
    let bytes = match &posted.data {
        PostedData::Inline(bytes) => bytes.clone(),
        PostedData::Segments(segments) => gather(nic, vi, segments, is_read)?,
    };

    let body = match posted.remote {
        Some(place) if is_read => PacketBody::Read { slot, place, length },
        place => {
            let immediate = posted.immediate;
            PacketBody::Data { slot, number: 0, place, bytes, immediate, is_copy: false }
        }
    };

    Ok((body, length))
}

/// Reads the pieces of local memory, or only checks that they may be written later.
fn gather(
    nic: &Nic,
    vi: &SimVi,
    segments: &[LocalSegment],
    only_checks: bool,
) -> Result<Vec<u8>, Status> {
    let mut bytes = Vec::new();
    for segment in segments {
        let memory = nic.objects.local(vi.core.attributes.tag, segment)?;
        if !only_checks {
            let length = usize::try_from(segment.length).map_err(|_| Status::ProtectionError)?;
            let taken = memory.take_onto(segment.offset, length, &mut bytes);
            taken.map_err(|_| Status::ProtectionError)?;
        }
    }
    Ok(bytes)
}

/// Writes bytes into pieces of local memory, in order.
fn scatter(nic: &Nic, vi: &SimVi, segments: &[LocalSegment], bytes: &[u8]) -> Result<(), Status> {
    let room = segments.iter().fold(0_u64, |sum, segment| sum.saturating_add(segment.length));
    for segment in segments {
        nic.objects.local(vi.core.attributes.tag, segment)?;
    }
    if to_u64(bytes.len()) > room {
        return Err(Status::LengthError);
    }
    nic.objects.scatter(vi.core.attributes.tag, segments, 0, bytes)
}

fn to_u64(count: usize) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}
