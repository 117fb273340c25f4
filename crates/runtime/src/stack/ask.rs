//! Asks a thread for its registers and its stack, by a signal.
//!
//! The handler sends its answer as one datagram whose last part is the stack itself: the kernel copies it, and refuses
//! (`EFAULT`) where the memory ends. So nothing is read beyond a mapping, whatever the stack is: the main thread's, a thread's,
//! a coroutine's. A datagram is whole or not there, so answers that come too late do not mix with the next ones.

#![expect(unsafe_code, reason = "signals have no safe interface")]

use std::{
    ffi::{c_int, c_long, c_void},
    io, mem,
    os::{fd::AsRawFd, unix::net::UnixDatagram},
    ptr,
    time::Duration,
};

use vigie_detect::clock::monotonic_now;

use super::NoStack;
use crate::{
    kernel_help::thread_number,
    sync::{Ordering, PoisonError, RealAtomicI32, RealAtomicU64, RealMutex},
    task_cell::{Id, try_id},
};

/// The time that a thread has to answer.
const PATIENCE: Duration = Duration::from_millis(50);

/// The most that is copied of a stack. A datagram may have 208 KiB by default.
const STACK_BYTES_MAX: usize = 128 << 10;

/// The unit of what is copied: mappings end at multiples of it, on any kernel.
const PAGE_BYTES: usize = 4096;

/// The request and the thread that it asks, in the upper and the lower half; zero while no thread is asked. Written by the asking
/// thread, which holds [`CHANNEL`]; read by handlers.
static ASKED: RealAtomicU64 = RealAtomicU64::new(0);

/// The socket into which handlers write; negative before the first request. Written like [`ASKED`], and before it.
static ANSWERS: RealAtomicI32 = RealAtomicI32::new(-1);

/// One request at a time.
static CHANNEL: RealMutex<Option<Channel>> = RealMutex::new(None);

struct Channel {
    /// The process that has made it. A forked child shares the sockets with its parent, and makes its own.
    process: u32,
    signal: c_int,
    /// Kept open for handlers.
    _answers: UnixDatagram,
    reader: UnixDatagram,
    requests: u32,
}

/// The beginning of an answer; the stack follows.
#[repr(C)]
#[derive(Clone, Copy)]
struct Header {
    asked: u64,
    task: u64,
    registers: Registers,
}

/// The registers with which unwinding begins.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct Registers {
    pub(super) instruction: u64,
    pub(super) stack: u64,
    pub(super) frame: u64,
    /// The address that the function returns to, on Arm; zero elsewhere.
    pub(super) link: u64,
}

const HEADER_BYTES: usize = size_of::<Header>();
const _: () = assert!(HEADER_BYTES == 48, "six words without padding");

/// The answer of a thread.
#[derive(Debug)]
pub(super) struct Sample {
    pub(super) registers: Registers,
    /// The memory from the stack pointer upwards.
    stack: Vec<u8>,
}

impl Sample {
    /// Returns the word at an address, if it was copied.
    pub(super) fn word(&self, address: u64) -> Option<u64> {
        let offset = usize::try_from(address.checked_sub(self.registers.stack)?).ok()?;
        let bytes = self.stack.get(offset..offset.checked_add(8)?)?;
        Some(u64::from_ne_bytes(bytes.try_into().ok()?))
    }
}

/// Asks `thread`, which should poll the task `id`.
pub(super) fn ask(thread: u32, id: Id) -> Result<Sample, NoStack> {
    let mut channel = CHANNEL.lock().unwrap_or_else(PoisonError::into_inner);
    let channel = match &mut *channel {
        Some(channel) if channel.is_usable() => channel,
        unusable => unusable.insert(Channel::new()?),
    };
    let sample = channel.ask(thread, id);
    ASKED.store(0, Ordering::Relaxed);
    sample
}

impl Channel {
    fn new() -> Result<Self, NoStack> {
        let refused = |error: io::Error| NoStack::Refused(error.raw_os_error().unwrap_or(0));
        let (reader, answers) = UnixDatagram::pair().map_err(refused)?;
        reader.set_read_timeout(Some(PATIENCE)).map_err(refused)?;
        let signal = install()?;
        ANSWERS.store(answers.as_raw_fd(), Ordering::Relaxed);
        Ok(Self { process: std::process::id(), signal, _answers: answers, reader, requests: 0 })
    }

    /// Returns whether it belongs to this process, and the program has not taken its signal since.
    fn is_usable(&self) -> bool {
        self.process == std::process::id() && action(self.signal) == Some(handler())
    }

    fn ask(&mut self, thread: u32, id: Id) -> Result<Sample, NoStack> {
        self.requests = self.requests.wrapping_add(1).max(1);
        let asked = u64::from(self.requests) << 32 | u64::from(thread);
        // Release: a handler that sees the request writes into the present socket.
        ASKED.store(asked, Ordering::Release);
        self.send_signal(thread)?;

        let deadline = monotonic_now() + PATIENCE;
        let mut answer = vec![0; HEADER_BYTES + STACK_BYTES_MAX];
        while monotonic_now() < deadline {
            let length = match self.reader.recv(&mut answer) {
                Ok(length) => length,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(_) => break,
            };
            let Some((header, stack)) = parse(&answer[..length]) else { continue };
            // Others are late answers to earlier requests.
            if header.asked == asked {
                // The thread may poll another task by now, or none.
                let is_it = header.task == id.number();
                let sample = Sample { registers: header.registers, stack: stack.to_vec() };
                return if is_it { Ok(sample) } else { Err(NoStack::Ended) };
            }
        }
        Err(NoStack::Silent)
    }

    fn send_signal(&self, thread: u32) -> Result<(), NoStack> {
        let (process, thread) = (c_long::from(self.process), c_long::from(thread));
        // SAFETY: a system call with numbers. If the thread has ended, the kernel says so; if another one of this process has its
        // number by now, its handler answers for itself.
        let sent =
            unsafe { libc::syscall(libc::SYS_tgkill, process, thread, c_long::from(self.signal)) };
        if sent == 0 {
            return Ok(());
        }
        match io::Error::last_os_error().raw_os_error() {
            Some(libc::ESRCH) => Err(NoStack::Ended),
            errno => Err(NoStack::Refused(errno.unwrap_or(0))),
        }
    }
}

fn parse(answer: &[u8]) -> Option<(Header, &[u8])> {
    let (header, stack) = answer.split_at_checked(HEADER_BYTES)?;
    let mut words = header.as_chunks().0.iter().map(|&word| u64::from_ne_bytes(word));
    let mut next = || words.next();
    let (asked, task) = (next()?, next()?);
    let (instruction, stack_pointer, frame, link) = (next()?, next()?, next()?, next()?);
    let registers = Registers { instruction, stack: stack_pointer, frame, link };
    Some((Header { asked, task, registers }, stack))
}

fn handler() -> libc::sighandler_t {
    on_signal as *const () as usize
}

/// Returns the process's action for `signal`, if there is such a signal.
fn action(signal: c_int) -> Option<libc::sighandler_t> {
    // SAFETY: all zeroes is a valid value of this plain structure.
    let mut present: libc::sigaction = unsafe { mem::zeroed() };
    // SAFETY: no new action is given; the old one is written to valid memory.
    let result = unsafe { libc::sigaction(signal, ptr::null(), &raw mut present) };
    (result == 0).then_some(present.sa_sigaction)
}

/// Installs the handler for the last real-time signal that the program does not use, or finds it installed. Returns the signal.
fn install() -> Result<c_int, NoStack> {
    let mut signals = (libc::SIGRTMIN()..=libc::SIGRTMAX()).rev();
    if let Some(signal) = signals.clone().find(|&signal| action(signal) == Some(handler())) {
        return Ok(signal);
    }
    let is_free = |signal: &c_int| action(*signal) == Some(libc::SIG_DFL);
    let signal = signals.find(is_free).ok_or(NoStack::NoSignal)?;
    // SAFETY: all zeroes is a valid value of this plain structure.
    let mut action: libc::sigaction = unsafe { mem::zeroed() };
    action.sa_sigaction = handler();
    action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART | libc::SA_ONSTACK;
    // Handlers do not nest: an alternate stack has not always room for two.
    // SAFETY: the mask is ours and valid for writes.
    unsafe { libc::sigfillset(&raw mut action.sa_mask) };
    // SAFETY: the handler is async-signal-safe: it sends, and preserves `errno`.
    if unsafe { libc::sigaction(signal, &raw const action, ptr::null_mut()) } != 0 {
        return Err(NoStack::Refused(io::Error::last_os_error().raw_os_error().unwrap_or(0)));
    }
    Ok(signal)
}

/// Answers, if this thread is asked.
extern "C" fn on_signal(_: c_int, _: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: `errno` of this thread; valid in a handler.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    let saved = unsafe { *errno };
    // Acquire: `Channel::ask`.
    let asked = ASKED.load(Ordering::Acquire);
    // Otherwise the signal is late or another's. The number of a thread is a system call without arguments.
    if asked != 0 && asked & u64::from(u32::MAX) == u64::from(thread_number()) {
        // SAFETY: the kernel passes a valid context to a handler that was installed with SA_SIGINFO.
        let registers = unsafe { registers(context.cast()) };
        // A thread-local without destructor, initialised at compile time: a plain address. This thread has polled.
        let task = try_id().map_or(0, Id::number);
        answer(&Header { asked, task, registers });
    }
    // SAFETY: as above.
    unsafe { *errno = saved };
}

/// Sends the header and the memory above the stack pointer, as much as there is. Async-signal-safe.
fn answer(header: &Header) {
    let stack = usize::try_from(header.registers.stack).unwrap_or(0);
    let mut end = stack.saturating_add(STACK_BYTES_MAX) & !(PAGE_BYTES - 1);
    loop {
        let bytes = end.saturating_sub(stack);
        let mut parts = [
            libc::iovec {
                iov_base: ptr::from_ref(header).cast_mut().cast(),
                iov_len: HEADER_BYTES,
            },
            libc::iovec { iov_base: ptr::with_exposed_provenance_mut(stack), iov_len: bytes },
        ];
        // SAFETY: all zeroes is a valid value of this plain structure.
        let mut message: libc::msghdr = unsafe { mem::zeroed() };
        message.msg_iov = parts.as_mut_ptr();
        message.msg_iovlen = parts.len() as _;
        let (fd, flags) =
            (ANSWERS.load(Ordering::Relaxed), libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL);
        // SAFETY: `sendmsg` is async-signal-safe. The kernel only reads what the parts point to, and refuses memory that is not
        // mapped. What lies above the stack pointer belongs to this thread, which is here.
        let sent = unsafe { libc::sendmsg(fd, &raw const message, flags) };
        // Reads `errno`, nothing else.
        let errno = io::Error::last_os_error().raw_os_error();
        if sent >= 0 || errno != Some(libc::EFAULT) || bytes == 0 {
            // If it could not be sent, the asking thread gives up after a while.
            return;
        }
        end = end.saturating_sub(PAGE_BYTES).max(stack);
    }
}

/// # Safety
/// `context` is what the kernel has passed to a handler.
#[cfg(target_arch = "x86_64")]
unsafe fn registers(context: *const libc::ucontext_t) -> Registers {
    // SAFETY: by contract.
    let general = unsafe { &(*context).uc_mcontext.gregs };
    let register = |index: c_int| general[index.cast_unsigned() as usize].cast_unsigned();
    Registers {
        instruction: register(libc::REG_RIP),
        stack: register(libc::REG_RSP),
        frame: register(libc::REG_RBP),
        link: 0,
    }
}

/// # Safety
/// `context` is what the kernel has passed to a handler.
#[cfg(target_arch = "aarch64")]
unsafe fn registers(context: *const libc::ucontext_t) -> Registers {
    // SAFETY: by contract.
    let general = unsafe { &(*context).uc_mcontext };
    Registers {
        instruction: general.pc,
        stack: general.sp,
        frame: general.regs[29],
        link: general.regs[30],
    }
}

/// Never called: no thread is asked.
///
/// # Safety
/// None.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
unsafe fn registers(_context: *const libc::ucontext_t) -> Registers {
    Registers { instruction: 0, stack: 0, frame: 0, link: 0 }
}
