//! The calls of libibverbs, each behind a type that releases its object: all unsafe code of this provider.
//!
//! Invariants:
//! - verbs-1: a pointer in one of these types came from the library, is not null, and is released once,
//!   by `Drop`.
//! - verbs-2: an object holds everything it was made of, which is therefore released later: a queue pair
//!   holds its domain and its queues, these hold the channel and the context.
//! - verbs-3: registered memory is held until it is deregistered, and for ever if the library refuses that:
//!   a device never writes to freed memory.
//!
//! The library locks its own objects: calls may come from any thread.

#![expect(unsafe_code, reason = "the calls of a C library, and structures that it fills in")]

use std::{
    ffi::CStr,
    fmt, io,
    mem::{self, MaybeUninit},
    os::fd::{AsFd, BorrowedFd},
    ptr::{self, NonNull},
    sync::Arc,
};

use rdma_sys as ffi;
use rdma_sys::{
    ibv_access_flags, ibv_qp_attr_mask as mask, ibv_qp_state, ibv_qp_type, ibv_send_flags,
    ibv_wr_opcode,
};

use crate::vi::{Memory, Operation, ViAttributes};

/// The most completions taken from a queue per call.
pub(super) const BATCH: usize = 16;

/// The most data segments of a work request.
pub(super) const SEGMENTS_MAX: usize = 16;

/// A local key that no device gives out.
pub(super) const NO_KEY: u32 = u32::MAX;

/// A structure of the library for which all zeros is a valid value.
///
/// # Safety
/// Its fields are numbers, unions of numbers and pointers.
unsafe trait Plain: Sized {
    fn zeroed() -> Self {
        // SAFETY: the trait guarantees that all zeros is a valid value.
        unsafe { MaybeUninit::zeroed().assume_init() }
    }
}

// SAFETY: numbers alone.
unsafe impl Plain for ffi::ibv_device_attr {}
// SAFETY: numbers alone.
unsafe impl Plain for ffi::ibv_port_attr {}
// SAFETY: numbers and pointers.
unsafe impl Plain for ffi::ibv_qp_init_attr {}
// SAFETY: numbers and unions of them.
unsafe impl Plain for ffi::ibv_qp_attr {}
// SAFETY: numbers, pointers and unions of them.
unsafe impl Plain for ffi::ibv_send_wr {}
// SAFETY: numbers and a union of them.
unsafe impl Plain for ffi::ibv_wc {}

/// The result of a call that returns an error number.
fn check(result: i32) -> io::Result<()> {
    match result {
        0 => Ok(()),
        1.. => Err(io::Error::from_raw_os_error(result)),
        _ => Err(io::Error::last_os_error()),
    }
}

fn not_null<T>(pointer: *mut T) -> io::Result<NonNull<T>> {
    NonNull::new(pointer).ok_or_else(io::Error::last_os_error)
}

/// The list of this machine's devices, while it is held.
struct DeviceList {
    first: NonNull<*mut ffi::ibv_device>,
    count: usize,
}

impl DeviceList {
    fn new() -> io::Result<Self> {
        let mut count = 0;
        // SAFETY: the count is written to, and nothing else is touched.
        let first = not_null(unsafe { ffi::ibv_get_device_list(&raw mut count) })?;
        Ok(Self { first, count: usize::try_from(count).unwrap_or(0) })
    }

    fn iter(&self) -> impl Iterator<Item = *mut ffi::ibv_device> {
        // SAFETY: the library has made an array of this length, which lives until `Drop` frees it.
        let devices = unsafe { std::slice::from_raw_parts(self.first.as_ptr(), self.count) };
        devices.iter().copied()
    }
}

impl Drop for DeviceList {
    fn drop(&mut self) {
        // SAFETY: verbs-1.
        unsafe { ffi::ibv_free_device_list(self.first.as_ptr()) }
    }
}

fn name_of(device: *mut ffi::ibv_device) -> String {
    // SAFETY: the device is of a list that lives.
    let name = unsafe { ffi::ibv_get_device_name(device) };
    if name.is_null() {
        return String::new();
    }
    // SAFETY: the library's names end with a zero, and live as long as the device.
    unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
}

/// Returns the names of the devices.
///
/// # Errors
/// The kernel's error: `ENOSYS` if it has no RDMA.
pub(super) fn device_names() -> io::Result<Vec<String>> {
    let list = DeviceList::new()?;
    Ok(list.iter().map(name_of).collect())
}

/// An opened device.
pub(super) struct Context(NonNull<ffi::ibv_context>);

// SAFETY: the library's objects may be used from any thread.
unsafe impl Send for Context {}
// SAFETY: as above; it locks what it changes.
unsafe impl Sync for Context {}

/// The capabilities of a device and its port, in the library's units.
#[derive(Clone, Copy, Debug)]
pub(super) struct DeviceLimits {
    pub(super) is_active: bool,
    pub(super) is_ethernet: bool,
    pub(super) lid: u16,
    pub(super) mtu: u32,
    pub(super) message_bytes: u32,
    pub(super) gids: u32,
    pub(super) descriptors: u32,
    pub(super) segments: u32,
    pub(super) completions: u32,
    pub(super) reads: u8,
}

impl DeviceLimits {
    /// Returns the most bytes of data in a packet: `mtu` counts from 1, which is 256.
    pub(super) const fn packet_bytes(&self) -> u64 {
        let mtu = if self.mtu > 5 { 5 } else { self.mtu };
        128 << mtu
    }
}

impl Context {
    pub(super) fn open(name: &str) -> io::Result<Option<Arc<Self>>> {
        let list = DeviceList::new()?;
        let Some(device) = list.iter().find(|device| name_of(*device) == name) else {
            return Ok(None);
        };
        // SAFETY: the device is of the list, which lives.
        let context = unsafe { ffi::ibv_open_device(device) };
        Ok(Some(Arc::new(Self(not_null(context)?))))
    }

    pub(super) fn limits(&self, port: u8) -> io::Result<DeviceLimits> {
        let mut device = ffi::ibv_device_attr::zeroed();
        // SAFETY: the context is open (verbs-1), and the structure is this library's.
        check(unsafe { ffi::ibv_query_device(self.0.as_ptr(), &raw mut device) })?;
        let mut found = ffi::ibv_port_attr::zeroed();
        // SAFETY: as above.
        check(unsafe { ffi::___ibv_query_port(self.0.as_ptr(), port, &raw mut found) })?;
        let count = |count: i32| u32::try_from(count).unwrap_or(0);
        let reads = device.max_qp_rd_atom.min(device.max_qp_init_rd_atom);
        Ok(DeviceLimits {
            is_active: found.state == ffi::ibv_port_state::IBV_PORT_ACTIVE,
            is_ethernet: u32::from(found.link_layer) == LINK_LAYER_ETHERNET,
            lid: found.lid,
            mtu: found.active_mtu,
            message_bytes: found.max_msg_sz,
            gids: count(found.gid_tbl_len),
            descriptors: count(device.max_qp_wr),
            segments: count(device.max_sge),
            completions: count(device.max_cqe),
            reads: u8::try_from(reads.clamp(0, 16)).unwrap_or(0),
        })
    }

    pub(super) fn gid(&self, port: u8, index: u32) -> io::Result<[u8; 16]> {
        let mut gid = ffi::ibv_gid { raw: [0; 16] };
        let index = i32::try_from(index).map_err(|_| io::ErrorKind::InvalidInput)?;
        // SAFETY: the context is open (verbs-1); 16 bytes are written.
        check(unsafe { ffi::ibv_query_gid(self.0.as_ptr(), port, index, &raw mut gid) })?;
        // SAFETY: every value of the union is 16 bytes.
        Ok(unsafe { gid.raw })
    }
}

/// `IBV_LINK_LAYER_ETHERNET`, which the bindings leave out.
const LINK_LAYER_ETHERNET: u32 = 2;

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: verbs-1; everything made of it is gone (verbs-2).
        let closed = unsafe { ffi::ibv_close_device(self.0.as_ptr()) };
        debug_assert_eq!(closed, 0, "a context that nothing is made of any more");
    }
}

/// A protection domain: the device's form of a protection tag.
pub(super) struct Domain {
    raw: NonNull<ffi::ibv_pd>,
    _context: Arc<Context>,
}

// SAFETY: as for `Context`.
unsafe impl Send for Domain {}
// SAFETY: as for `Context`.
unsafe impl Sync for Domain {}

impl Domain {
    pub(super) fn new(context: &Arc<Context>) -> io::Result<Arc<Self>> {
        // SAFETY: the context is open (verbs-1).
        let raw = not_null(unsafe { ffi::ibv_alloc_pd(context.0.as_ptr()) })?;
        Ok(Arc::new(Self { raw, _context: Arc::clone(context) }))
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        // SAFETY: verbs-1; its memory and queue pairs are gone (verbs-2). If the device has kept one, the domain
        // stays until the context is closed.
        let _: i32 = unsafe { ffi::ibv_dealloc_pd(self.raw.as_ptr()) };
    }
}

/// Memory registered with the device.
pub(super) struct Registration {
    raw: NonNull<ffi::ibv_mr>,
    pub(super) local_key: u32,
    pub(super) remote_key: u32,
    memory: Option<Memory>,
    domain: Arc<Domain>,
}

// SAFETY: as for `Context`.
unsafe impl Send for Registration {}
// SAFETY: as for `Context`.
unsafe impl Sync for Registration {}

impl Registration {
    /// Registers memory, whose first byte has `address` for peers and descriptors.
    pub(super) fn new(
        domain: &Arc<Domain>,
        memory: Memory,
        address: u64,
        (allows_write, allows_read): (bool, bool),
    ) -> io::Result<Self> {
        let mut access = 0;
        if memory.is_writable() {
            access |= ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0;
            if allows_write {
                access |= ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0;
            }
        }

        if allows_read {
            access |= ibv_access_flags::IBV_ACCESS_REMOTE_READ.0;
        }
        let (start, length) = (memory.base().as_ptr().cast(), memory.len());
        // SAFETY: the domain lives (verbs-1); the bytes do until the registration ends (verbs-3), and
        // other accesses go through raw pointers, as `Memory` says.
        let raw = unsafe {
            ffi::__ibv_reg_mr_iova(domain.raw.as_ptr(), start, length, address, access, 1)
        };
        let raw = not_null(raw)?;
        // SAFETY: the library has filled it in (verbs-1).
        let found = unsafe { raw.as_ref() };
        Ok(Self {
            raw,
            local_key: found.lkey,
            remote_key: found.rkey,
            memory: Some(memory),
            domain: Arc::clone(domain),
        })
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        // SAFETY: verbs-1.
        if unsafe { ffi::ibv_dereg_mr(self.raw.as_ptr()) } != 0 {
            // The device may go on writing: verbs-3.
            mem::forget((self.memory.take(), Arc::clone(&self.domain)));
        }
    }
}

/// A completion channel: readable when an armed completion queue gets a completion.
pub(super) struct Channel {
    raw: NonNull<ffi::ibv_comp_channel>,
    context: Arc<Context>,
}

// SAFETY: as for `Context`.
unsafe impl Send for Channel {}
// SAFETY: as for `Context`.
unsafe impl Sync for Channel {}

impl Channel {
    pub(super) fn new(context: &Arc<Context>) -> io::Result<Arc<Self>> {
        // SAFETY: the context is open (verbs-1).
        let raw = not_null(unsafe { ffi::ibv_create_comp_channel(context.0.as_ptr()) })?;
        let this = Self { raw, context: Arc::clone(context) };
        let flags = rustix::fs::fcntl_getfl(&this)?;
        rustix::fs::fcntl_setfl(&this, flags | rustix::fs::OFlags::NONBLOCK)?;
        Ok(Arc::new(this))
    }

    /// Takes the pending notifications of armed queues. Returns whether there were any.
    pub(super) fn quiet(&self) -> bool {
        let mut is_news = false;
        loop {
            let (mut queue, mut context) = (ptr::null_mut(), ptr::null_mut());
            // SAFETY: the channel lives (verbs-1) and does not block; both pointers are written to.
            let found = unsafe {
                ffi::ibv_get_cq_event(self.raw.as_ptr(), &raw mut queue, &raw mut context)
            };
            if found != 0 {
                return is_news;
            }
            is_news = true;
            // SAFETY: the queue lives: one is destroyed only once all its notifications were acknowledged.
            unsafe { ffi::ibv_ack_cq_events(queue, 1) };
        }
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the library has filled it in (verbs-1).
        let fd = unsafe { self.raw.as_ref() }.fd;
        // SAFETY: it is open as long as the channel lives.
        unsafe { BorrowedFd::borrow_raw(fd) }
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        // SAFETY: verbs-1; its queues are gone (verbs-2).
        let _: i32 = unsafe { ffi::ibv_destroy_comp_channel(self.raw.as_ptr()) };
    }
}

/// A completion of the device.
#[derive(Clone, Copy, Debug)]
pub(super) struct WorkCompletion {
    /// The number of the work request.
    pub(super) number: u64,
    pub(super) status: u32,
    pub(super) length: u32,
    pub(super) immediate: Option<i32>,
}

/// A completion queue of the device.
pub(super) struct CompletionQueue {
    raw: NonNull<ffi::ibv_cq>,
    _channel: Arc<Channel>,
}

// SAFETY: as for `Context`.
unsafe impl Send for CompletionQueue {}
// SAFETY: as for `Context`.
unsafe impl Sync for CompletionQueue {}

impl CompletionQueue {
    pub(super) fn new(channel: &Arc<Channel>, capacity: u32) -> io::Result<Arc<Self>> {
        let capacity = i32::try_from(capacity).map_err(|_| io::ErrorKind::InvalidInput)?;
        let (context, raw) = (channel.context.0.as_ptr(), channel.raw.as_ptr());
        // SAFETY: the context and the channel live (verbs-1), and are held (verbs-2).
        let raw = unsafe { ffi::ibv_create_cq(context, capacity, ptr::null_mut(), raw, 0) };
        Ok(Arc::new(Self { raw: not_null(raw)?, _channel: Arc::clone(channel) }))
    }

    /// Asks to be notified of the next completion.
    pub(super) fn arm(&self) -> io::Result<()> {
        // SAFETY: the queue lives (verbs-1).
        check(unsafe { ffi::ibv_req_notify_cq(self.raw.as_ptr(), 0) })
    }

    /// Takes completions into the front of `found`, leaves the rest alone, and returns their number.
    pub(super) fn poll(&self, found: &mut [Option<WorkCompletion>; BATCH]) -> usize {
        let mut room: [ffi::ibv_wc; BATCH] = std::array::from_fn(|_| ffi::ibv_wc::zeroed());
        let most = i32::try_from(BATCH).unwrap_or(1);
        // SAFETY: the queue lives (verbs-1), and there is room for `most` completions.
        let count = unsafe { ffi::ibv_poll_cq(self.raw.as_ptr(), most, room.as_mut_ptr()) };
        let count = usize::try_from(count).unwrap_or(0).min(BATCH);
        for (place, completion) in found.iter_mut().zip(&room).take(count) {
            let has_immediate = completion.wc_flags & ffi::ibv_wc_flags::IBV_WC_WITH_IMM.0 != 0;
            // SAFETY: both values of the union are a number of 32 bits.
            let word = unsafe { completion.imm_data_invalidated_rkey_union.imm_data };
            *place = Some(WorkCompletion {
                number: completion.wr_id,
                status: completion.status,
                length: completion.byte_len,
                immediate: has_immediate.then(|| i32::from_be_bytes(word.to_ne_bytes())),
            });
        }
        count
    }
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        // SAFETY: verbs-1; its queue pairs are gone (verbs-2), and its notifications are acknowledged at once.
        let _: i32 = unsafe { ffi::ibv_destroy_cq(self.raw.as_ptr()) };
    }
}

/// A piece of memory, in the device's terms.
pub(super) type Sge = ffi::ibv_sge;

/// The configuration of a queue pair.
pub(super) struct QueuePairConfig {
    pub(super) is_reliable: bool,
    pub(super) descriptors: u32,
    pub(super) segments: u32,
    pub(super) inline_bytes: u32,
}

/// One end of a connection, as the other end must know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct QpEndpoint {
    pub(super) number: u32,
    /// The number of its first packet.
    pub(super) first_packet: u32,
    pub(super) gid: [u8; 16],
    pub(super) lid: u16,
    pub(super) mtu: u32,
    /// The most RDMA reads that it answers concurrently.
    pub(super) reads: u8,
}

/// The local port and identifier that packets leave from.
#[derive(Clone, Copy, Debug)]
pub(super) struct LocalPort {
    pub(super) port: u8,
    pub(super) gid_index: u8,
    pub(super) has_gid: bool,
}

/// The number of time-outs that end a connection. Seven is the most.
const RETRIES: u8 = 7;
/// The time-out for an acknowledgement: 4.096 µs times two to the power of this, 67 ms.
const TIMEOUT: u8 = 14;
/// The number of routers that a packet may pass.
const HOPS: u8 = 64;

/// A queue pair.
pub(super) struct QueuePair {
    raw: NonNull<ffi::ibv_qp>,
    is_reliable: bool,
    pub(super) number: u32,
    _domain: Arc<Domain>,
    _queues: [Arc<CompletionQueue>; 2],
}

// SAFETY: as for `Context`.
unsafe impl Send for QueuePair {}
// SAFETY: as for `Context`.
unsafe impl Sync for QueuePair {}

impl QueuePair {
    pub(super) fn new(
        domain: &Arc<Domain>,
        sends: &Arc<CompletionQueue>,
        receives: &Arc<CompletionQueue>,
        shape: &QueuePairConfig,
    ) -> io::Result<Self> {
        let mut wanted = ffi::ibv_qp_init_attr::zeroed();
        wanted.send_cq = sends.raw.as_ptr();
        wanted.recv_cq = receives.raw.as_ptr();
        wanted.cap.max_send_wr = shape.descriptors;
        wanted.cap.max_recv_wr = shape.descriptors;
        wanted.cap.max_send_sge = shape.segments;
        wanted.cap.max_recv_sge = shape.segments;
        wanted.cap.max_inline_data = shape.inline_bytes;
        wanted.qp_type =
            if shape.is_reliable { ibv_qp_type::IBV_QPT_RC } else { ibv_qp_type::IBV_QPT_UC };
        // SAFETY: the domain and the queues live (verbs-1), and are held (verbs-2).
        let raw = not_null(unsafe { ffi::ibv_create_qp(domain.raw.as_ptr(), &raw mut wanted) })?;
        // SAFETY: the library has filled it in (verbs-1).
        let number = unsafe { raw.as_ref() }.qp_num;
        Ok(Self {
            raw,
            is_reliable: shape.is_reliable,
            number,
            _domain: Arc::clone(domain),
            _queues: [Arc::clone(sends), Arc::clone(receives)],
        })
    }

    fn modify(&self, mut values: ffi::ibv_qp_attr, which: mask) -> io::Result<()> {
        let which = i32::try_from(which.0).map_err(|_| io::ErrorKind::InvalidInput)?;
        // SAFETY: the queue pair lives (verbs-1), and the structure is this library's.
        check(unsafe { ffi::ibv_modify_qp(self.raw.as_ptr(), &raw mut values, which) })
    }

    /// Makes it ready for receive descriptors. Descriptors posted before are dropped.
    pub(super) fn reset(&self, local_port: LocalPort, attributes: &ViAttributes) -> io::Result<()> {
        let mut values = ffi::ibv_qp_attr::zeroed();
        values.qp_state = ibv_qp_state::IBV_QPS_RESET;
        self.modify(values, mask::IBV_QP_STATE)?;
        let mut values = ffi::ibv_qp_attr::zeroed();
        values.qp_state = ibv_qp_state::IBV_QPS_INIT;
        values.port_num = local_port.port;
        if attributes.allows_write {
            values.qp_access_flags |= ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0;
        }
        if attributes.allows_read && self.is_reliable {
            values.qp_access_flags |= ibv_access_flags::IBV_ACCESS_REMOTE_READ.0;
        }
        let which = mask::IBV_QP_STATE
            | mask::IBV_QP_PKEY_INDEX
            | mask::IBV_QP_PORT
            | mask::IBV_QP_ACCESS_FLAGS;
        self.modify(values, which)
    }

    /// Connects it: receive descriptors are consumed from here on, and it may send.
    pub(super) fn connect(
        &self,
        local_port: LocalPort,
        own: &QpEndpoint,
        peer: &QpEndpoint,
    ) -> io::Result<()> {
        let mut values = ffi::ibv_qp_attr::zeroed();
        values.qp_state = ibv_qp_state::IBV_QPS_RTR;
        values.path_mtu = own.mtu.min(peer.mtu);
        values.dest_qp_num = peer.number;
        values.rq_psn = peer.first_packet;
        values.ah_attr.port_num = local_port.port;
        values.ah_attr.dlid = peer.lid;
        if local_port.has_gid {
            values.ah_attr.is_global = 1;
            values.ah_attr.grh.dgid = ffi::ibv_gid { raw: peer.gid };
            values.ah_attr.grh.sgid_index = local_port.gid_index;
            values.ah_attr.grh.hop_limit = HOPS;
        }

        let mut which = mask::IBV_QP_STATE
            | mask::IBV_QP_AV
            | mask::IBV_QP_PATH_MTU
            | mask::IBV_QP_DEST_QPN
            | mask::IBV_QP_RQ_PSN;
        if self.is_reliable {
            values.max_dest_rd_atomic = own.reads;
            which = which | mask::IBV_QP_MAX_DEST_RD_ATOMIC | mask::IBV_QP_MIN_RNR_TIMER;
        }

        self.modify(values, which)?;
        let mut values = ffi::ibv_qp_attr::zeroed();
        values.qp_state = ibv_qp_state::IBV_QPS_RTS;
        values.sq_psn = own.first_packet;
        let mut which = mask::IBV_QP_STATE | mask::IBV_QP_SQ_PSN;
        if self.is_reliable {
            values.timeout = TIMEOUT;
            values.retry_cnt = RETRIES;
            // A missing receive descriptor is an error at once: `rnr_retry` stays zero.
            values.max_rd_atomic = own.reads.min(peer.reads);
            which = which
                | mask::IBV_QP_TIMEOUT
                | mask::IBV_QP_RETRY_CNT
                | mask::IBV_QP_RNR_RETRY
                | mask::IBV_QP_MAX_QP_RD_ATOMIC;
        }

        self.modify(values, which)
    }

    /// Flushes everything that is posted.
    pub(super) fn fail(&self) -> io::Result<()> {
        let mut values = ffi::ibv_qp_attr::zeroed();
        values.qp_state = ibv_qp_state::IBV_QPS_ERR;
        self.modify(values, mask::IBV_QP_STATE)
    }

    /// Posts a receive descriptor. Its pieces were checked, or are meant to fail.
    pub(super) fn post_receive(&self, number: u64, sges: &mut [Sge]) -> io::Result<()> {
        let mut request = ffi::ibv_recv_wr {
            wr_id: number,
            next: ptr::null_mut(),
            sg_list: sges.as_mut_ptr(),
            num_sge: i32::try_from(sges.len()).unwrap_or(0),
        };
        let mut bad = ptr::null_mut();
        // SAFETY: the queue pair lives (verbs-1); request and pieces are read only during the call. The
        // pieces refer to memory that the device knows, and checks.
        check(unsafe { ffi::ibv_post_recv(self.raw.as_ptr(), &raw mut request, &raw mut bad) })
    }

    /// Posts a send descriptor.
    pub(super) fn post_send(&self, request: &SendWorkRequest<'_>) -> io::Result<()> {
        let mut raw = ffi::ibv_send_wr::zeroed();
        raw.wr_id = request.number;
        raw.opcode = match (request.operation, request.immediate) {
            (Operation::Send, None) => ibv_wr_opcode::IBV_WR_SEND,
            (Operation::Send, Some(_)) => ibv_wr_opcode::IBV_WR_SEND_WITH_IMM,
            (Operation::RdmaWrite, None) => ibv_wr_opcode::IBV_WR_RDMA_WRITE,
            (Operation::RdmaWrite, Some(_)) => ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM,
            (Operation::RdmaRead, _) => ibv_wr_opcode::IBV_WR_RDMA_READ,
        };

        if let Some(immediate) = request.immediate {
            let word = u32::from_ne_bytes(immediate.to_be_bytes());
            raw.imm_data_invalidated_rkey_union =
                ffi::imm_data_invalidated_rkey_union_t { imm_data: word };
        }

        let (remote_addr, rkey) = request.remote;
        raw.wr = ffi::wr_t { rdma: ffi::rdma_t { remote_addr, rkey } };
        if request.is_signaled {
            raw.send_flags |= ibv_send_flags::IBV_SEND_SIGNALED.0;
        }
        let mut inline;
        match request.data {
            SendData::Pieces(sges) => {
                raw.sg_list = sges.as_ptr().cast_mut();
                raw.num_sge = i32::try_from(sges.len()).unwrap_or(0);
            }
            SendData::Inline(bytes) => {
                raw.send_flags |= ibv_send_flags::IBV_SEND_INLINE.0;
                let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
                inline = Sge { addr: address_of(bytes), length, lkey: 0 };
                raw.sg_list = &raw mut inline;
                raw.num_sge = i32::from(!bytes.is_empty());
            }
        }

        let mut bad = ptr::null_mut();
        // SAFETY: the queue pair lives (verbs-1); request, pieces and inline bytes are read only during
        // the call, and not written. Other pieces refer to memory that the device knows, and checks.
        check(unsafe { ffi::ibv_post_send(self.raw.as_ptr(), &raw mut raw, &raw mut bad) })
    }
}

fn address_of(bytes: &[u8]) -> u64 {
    u64::try_from(bytes.as_ptr().expose_provenance()).unwrap_or(0)
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        // SAFETY: verbs-1. Afterwards the device touches nothing more on its behalf.
        let _: i32 = unsafe { ffi::ibv_destroy_qp(self.raw.as_ptr()) };
    }
}

/// A send descriptor in the terms of the device.
pub(super) struct SendWorkRequest<'a> {
    pub(super) number: u64,
    pub(super) operation: Operation,
    pub(super) immediate: Option<i32>,
    pub(super) is_signaled: bool,
    /// A remote address and its key.
    pub(super) remote: (u64, u32),
    pub(super) data: SendData<'a>,
}

/// The data of a send descriptor.
pub(super) enum SendData<'a> {
    Pieces(&'a [Sge]),
    /// Copied during the call.
    Inline(&'a [u8]),
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Context(_)")
    }
}
