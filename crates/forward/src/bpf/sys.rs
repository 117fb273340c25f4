//! bpf(2).
//!
//! # Invariants
//! - bpf-1: every function here passes the kernel no pointer without the length of what it points to, or, where the
//!   kernel takes lengths from the map, memory of the lengths with which that map was made.

#![expect(unsafe_code, reason = "bpf(2), which no crate of ours offers: bpf-1")]

use std::{
    fs, io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
};

use vigie_detect::refuse_in_simulation;

use super::{
    map::{MapKind, MapSpec},
    program::ProgramKind,
};

const MAP_CREATE: i64 = 0;
const MAP_LOOKUP: i64 = 1;
const MAP_UPDATE: i64 = 2;
const MAP_DELETE: i64 = 3;
const MAP_NEXT_KEY: i64 = 4;
const PROGRAM_LOAD: i64 = 5;
const TEST_RUN: i64 = 10;
const INFORMATION: i64 = 15;
const LINK_CREATE: i64 = 28;

const ATTRIBUTE_BYTES: usize = 128;

/// The argument of bpf(2), as aligned bytes.
#[repr(align(8))]
struct Attribute([u8; ATTRIBUTE_BYTES]);

impl Attribute {
    const fn new() -> Self {
        Self([0; ATTRIBUTE_BYTES])
    }

    fn word(mut self, offset: usize, value: u32) -> Self {
        self.0[offset..offset + 4].copy_from_slice(&value.to_ne_bytes());
        self
    }

    fn double(mut self, offset: usize, value: u64) -> Self {
        self.0[offset..offset + 8].copy_from_slice(&value.to_ne_bytes());
        self
    }

    fn pointer<T>(self, offset: usize, to: *const T) -> Self {
        self.double(offset, u64::try_from(to.expose_provenance()).unwrap_or(0))
    }

    fn pointer_mut<T>(self, offset: usize, to: *mut T) -> Self {
        self.double(offset, u64::try_from(to.expose_provenance()).unwrap_or(0))
    }

    fn descriptor(self, offset: usize, descriptor: BorrowedFd<'_>) -> Self {
        self.word(offset, descriptor.as_raw_fd().cast_unsigned())
    }

    /// Writes a name, cut to 15 characters that the kernel accepts.
    fn name(mut self, offset: usize, name: &str) -> Self {
        let bytes = name.bytes().filter(|byte| byte.is_ascii_alphanumeric() || *byte == b'_');
        for (to, byte) in self.0[offset..offset + 15].iter_mut().zip(bytes) {
            *to = byte;
        }
        self
    }

    fn read(&self, offset: usize) -> u32 {
        self.0[offset..].first_chunk().map_or(0, |bytes: &[u8; 4]| u32::from_ne_bytes(*bytes))
    }

    /// Calls the kernel. Only for memory of this module's callers that is large enough (bpf-1).
    fn call(&mut self, command: i64) -> io::Result<i64> {
        refuse_in_simulation("BPF in a kernel", "run the stages in a `PipelineSimulation`")?;
        let bytes = self.0.as_mut_ptr();
        // SAFETY: the kernel reads and writes 128 bytes, which are there, and memory to which they point, of
        // the lengths that go with it (bpf-1), which lives until the caller of this function returns.
        let result = unsafe { libc::syscall(libc::SYS_bpf, command, bytes, ATTRIBUTE_BYTES) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
    }

    fn call_for_descriptor(&mut self, command: i64) -> io::Result<OwnedFd> {
        let descriptor = i32::try_from(self.call(command)?).map_err(io::Error::other)?;
        // SAFETY: the kernel has just created it for this call, and nothing else owns it.
        Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
    }
}

fn length(bytes: usize) -> io::Result<u32> {
    u32::try_from(bytes).map_err(|_| io::ErrorKind::InvalidInput.into())
}

/// The number of possible processors, for each of which per-CPU maps have a value.
fn processors() -> usize {
    let text = fs::read_to_string("/sys/devices/system/cpu/possible").unwrap_or_default();
    let last = text.trim().rsplit([',', '-']).next();
    last.and_then(|last| last.parse::<usize>().ok()).map_or(1, |last| last + 1)
}

/// A kernel map, with the lengths with which it was created.
#[derive(Debug)]
pub(super) struct Map {
    descriptor: OwnedFd,
    spec: MapSpec,
    /// Bytes that one look-up writes.
    value_length: usize,
}

impl Map {
    pub(super) fn create(spec: MapSpec, name: &str) -> io::Result<Self> {
        let mut attribute = Attribute::new()
            .word(0, spec.kind.number())
            .word(4, spec.key_bytes)
            .word(8, spec.value_bytes)
            .word(12, spec.entries_max)
            .word(16, spec.kind.flags())
            .name(28, name);
        let descriptor = attribute.call_for_descriptor(MAP_CREATE)?;
        let value_length = match spec.kind {
            MapKind::PerCpuArray => spec.value_length().next_multiple_of(8) * processors(),
            _ => spec.value_length(),
        };
        Ok(Self { descriptor, spec, value_length })
    }

    pub(super) const fn spec(&self) -> MapSpec {
        self.spec
    }

    pub(super) const fn value_length(&self) -> usize {
        self.value_length
    }

    fn check(&self, key: &[u8]) -> io::Result<()> {
        let fits = key.len() == self.spec.key_length();
        if fits { Ok(()) } else { Err(io::ErrorKind::InvalidInput.into()) }
    }

    pub(super) fn look_up(&self, key: &[u8]) -> io::Result<Vec<u8>> {
        self.check(key)?;
        let mut value = vec![0; self.value_length];
        Attribute::new()
            .descriptor(0, self.descriptor.as_fd())
            .pointer(8, key.as_ptr())
            .pointer_mut(16, value.as_mut_ptr())
            .call(MAP_LOOKUP)?;
        Ok(value)
    }

    pub(super) fn update(&self, key: &[u8], value: &[u8], flags: u64) -> io::Result<()> {
        self.check(key)?;
        if value.len() != self.value_length {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let mut attribute = Attribute::new()
            .descriptor(0, self.descriptor.as_fd())
            .pointer(8, key.as_ptr())
            .pointer(16, value.as_ptr())
            .double(24, flags);
        attribute.call(MAP_UPDATE).map(|_| ())
    }

    pub(super) fn delete(&self, key: &[u8]) -> io::Result<()> {
        self.check(key)?;
        let mut attribute =
            Attribute::new().descriptor(0, self.descriptor.as_fd()).pointer(8, key.as_ptr());
        attribute.call(MAP_DELETE).map(|_| ())
    }

    /// Returns the key after this one, or the first.
    pub(super) fn next_key(&self, key: Option<&[u8]>) -> io::Result<Vec<u8>> {
        let mut next = vec![0; self.spec.key_length()];
        let mut attribute = Attribute::new()
            .descriptor(0, self.descriptor.as_fd())
            .pointer_mut(16, next.as_mut_ptr());
        if let Some(key) = key {
            self.check(key)?;
            attribute = attribute.pointer(8, key.as_ptr());
        }
        attribute.call(MAP_NEXT_KEY)?;
        Ok(next)
    }

    pub(super) fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

/// Loads a program. The verifier writes to the log, if there is one.
pub(super) fn load(
    kind: ProgramKind,
    name: &str,
    words: &[u64],
    log: Option<&mut [u8]>,
) -> io::Result<OwnedFd> {
    let license = c"Dual MIT/GPL";
    let mut attribute = Attribute::new()
        .word(0, kind.program_type())
        .word(4, length(words.len())?)
        .pointer(8, words.as_ptr())
        .pointer(16, license.as_ptr())
        .name(48, name)
        .word(68, kind.attach_type());
    if let Some(log) = log {
        attribute =
            attribute.word(24, 1).word(28, length(log.len())?).pointer_mut(32, log.as_mut_ptr());
    }
    attribute.call_for_descriptor(PROGRAM_LOAD)
}

/// `BPF_F_BEFORE`, `BPF_F_LINK`.
const BEFORE: u32 = 1 << 3;
const LINK: u32 = 1 << 13;

/// Attaches a program to an interface of this thread's network namespace, until the last copy of the returned
/// descriptor is closed; at tcx, before another link's if there is one.
pub(super) fn create_link(
    program: BorrowedFd<'_>,
    interface: u32,
    kind: ProgramKind,
    flags: u32,
    before: Option<BorrowedFd<'_>>,
) -> io::Result<OwnedFd> {
    let mut attribute = Attribute::new().descriptor(0, program).word(4, interface);
    attribute = attribute.word(8, kind.attach_type()).word(12, flags);
    if let Some(link) = before {
        attribute = attribute.word(12, flags | BEFORE | LINK).descriptor(16, link);
    }
    attribute.call_for_descriptor(LINK_CREATE)
}

/// Returns the interface to which a link is attached; 0 if that interface is gone.
pub(super) fn interface_of(link: BorrowedFd<'_>) -> io::Result<u32> {
    // struct bpf_link_info: type, id, program; then the part that depends on the type, aligned to 8.
    let mut information = [0_u8; 96];
    let mut attribute = Attribute::new()
        .descriptor(0, link)
        .word(4, length(information.len())?)
        .pointer_mut(8, information.as_mut_ptr());
    attribute.call(INFORMATION)?;
    let [_, _, _, _, a, b, c, d] = information[12..].first_chunk().copied().unwrap_or_default();
    Ok(u32::from_ne_bytes([a, b, c, d]))
}

/// The input of a test run, besides the program.
#[derive(Debug, Default)]
pub(super) struct TestRunInput<'a> {
    pub(super) frame: &'a [u8],
    /// `struct xdp_md`, or nothing.
    pub(super) context: &'a [u8],
    pub(super) repeat: u32,
    pub(super) flags: u32,
    pub(super) batch: u32,
}

/// The result of a test run.
#[derive(Debug)]
pub(super) struct TestRunOutput {
    pub(super) action: u32,
    /// The length of the resulting frame in bytes.
    pub(super) length: usize,
    /// The average per run, in nanoseconds.
    pub(super) duration_ns: u32,
}

/// Runs a program on a frame; without `out` the frame is not returned.
pub(super) fn test_run(
    program: BorrowedFd<'_>,
    test: &TestRunInput<'_>,
    out: Option<&mut [u8]>,
) -> io::Result<TestRunOutput> {
    let mut attribute = Attribute::new()
        .descriptor(0, program)
        .word(8, length(test.frame.len())?)
        .pointer(16, test.frame.as_ptr())
        .word(32, test.repeat)
        .word(64, test.flags)
        .word(72, test.batch);
    if !test.context.is_empty() {
        let bytes = length(test.context.len())?;
        attribute = attribute.word(40, bytes).pointer(48, test.context.as_ptr());
    }
    let mut room = 0;
    if let Some(out) = out {
        room = out.len();
        attribute = attribute.word(12, length(room)?).pointer_mut(24, out.as_mut_ptr());
    }
    attribute.call(TEST_RUN)?;
    Ok(TestRunOutput {
        action: attribute.read(4),
        length: usize::try_from(attribute.read(12)).unwrap_or(0).min(room),
        duration_ns: attribute.read(36),
    })
}
