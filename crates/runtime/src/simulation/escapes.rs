//! Functions of the C library that leave a simulation, for test programs that put these in their place.

#![expect(unsafe_code, reason = "they stand for functions of the C library")]

use std::{
    backtrace::Backtrace,
    ffi::{CStr, c_void},
    ptr::NonNull,
    time::{Duration, UNIX_EPOCH},
};

use crate::{
    flavor::simulated::{self, PolledIn},
    handle::{Handle, Scheduler},
    sync::{RealAtomicBool, count::RELAXED},
};

/// Puts functions in the place of the C library's, in a test program: once, outside of all functions. While a simulated node's
/// task is polled,
///
/// - a thread or process that starts, a sleep, and a `bind` or `connect` of a real socket fail the run, with the task and the place of
///   the call;
/// - `std::time` reads the virtual clock, and the node's wall clock, as [`system_time`](crate::time::system_time) does; what waits for that clock, in a loop or with a
///   time-out of std's, fails the run, too;
/// - the system's random numbers come from the seed. std's `HashMap` still has an order of its own in each thread, which is drawn
///   before the run.
///
/// Elsewhere everything is as before. Without this macro, only a task that sleeps or waits in the kernel for a millisecond or
/// more is noticed, and named on standard error.
///
/// # Examples
/// ```standalone_crate
/// vigie_runtime::catch_escapes!();
///
/// # fn main() {
/// let mut world = vigie_runtime::simulation::World::new(1);
/// world.block_on(async {
///     let begin = std::time::Instant::now();
///     vigie_runtime::time::sleep(std::time::Duration::from_secs(3600)).await;
///     assert_eq!(begin.elapsed().as_secs(), 3600);
/// });
/// # }
/// ```
#[macro_export]
macro_rules! catch_escapes {
    () => {
        const _: () = {
            use ::std::ffi::{c_int, c_uint, c_void};

            #[unsafe(no_mangle)]
            unsafe extern "C" fn pthread_create(
                thread: *mut c_void,
                attributes: *const c_void,
                start: extern "C" fn(*mut c_void) -> *mut c_void,
                argument: *mut c_void,
            ) -> c_int {
                unsafe {
                    $crate::simulation::escapes::pthread_create(thread, attributes, start, argument)
                }
            }

            #[unsafe(no_mangle)]
            unsafe extern "C" fn posix_spawnp(
                process: *mut c_void,
                program: *const c_void,
                actions: *const c_void,
                attributes: *const c_void,
                arguments: *const c_void,
                environment: *const c_void,
            ) -> c_int {
                let attributes = [actions, attributes];
                let texts = [program, arguments, environment];
                unsafe { $crate::simulation::escapes::posix_spawnp(process, attributes, texts) }
            }

            #[unsafe(no_mangle)]
            unsafe extern "C" fn fork() -> c_int {
                unsafe { $crate::simulation::escapes::fork() }
            }

            #[unsafe(no_mangle)]
            unsafe extern "C" fn nanosleep(time: *const c_void, left: *mut c_void) -> c_int {
                unsafe { $crate::simulation::escapes::nanosleep(time, left) }
            }

            #[unsafe(no_mangle)]
            unsafe extern "C" fn clock_nanosleep(
                clock: c_int,
                flags: c_int,
                time: *const c_void,
                left: *mut c_void,
            ) -> c_int {
                unsafe { $crate::simulation::escapes::clock_nanosleep(clock, flags, time, left) }
            }

            #[unsafe(no_mangle)]
            unsafe extern "C" fn bind(socket: c_int, to: *const c_void, length: c_uint) -> c_int {
                unsafe { $crate::simulation::escapes::bind(socket, to, length) }
            }

            #[unsafe(no_mangle)]
            unsafe extern "C" fn connect(
                socket: c_int,
                to: *const c_void,
                length: c_uint,
            ) -> c_int {
                unsafe { $crate::simulation::escapes::connect(socket, to, length) }
            }

            #[unsafe(no_mangle)]
            unsafe extern "C" fn clock_gettime(clock: c_int, time: *mut c_void) -> c_int {
                unsafe { $crate::simulation::escapes::clock_gettime(clock, time) }
            }

            #[unsafe(no_mangle)]
            unsafe extern "C" fn getrandom(to: *mut c_void, length: usize, flags: c_uint) -> isize {
                unsafe { $crate::simulation::escapes::getrandom(to, length, flags) }
            }
        };
    };
}

pub use catch_escapes;

type StartRoutine = extern "C" fn(*mut c_void) -> *mut c_void;
type PthreadCreate =
    unsafe extern "C" fn(*mut c_void, *const c_void, StartRoutine, *mut c_void) -> i32;
type PosixSpawn = unsafe extern "C" fn(
    *mut c_void,
    *const c_void,
    *const c_void,
    *const c_void,
    *const c_void,
    *const c_void,
) -> i32;
type Fork = unsafe extern "C" fn() -> i32;

/// pthread_create(3).
///
/// # Safety
/// As for the function.
#[doc(hidden)]
pub unsafe fn pthread_create(
    thread: *mut c_void,
    attributes: *const c_void,
    start: StartRoutine,
    argument: *mut c_void,
) -> i32 {
    escaped("starts a thread");
    let Some(next) = next(c"pthread_create") else { return libc::EAGAIN };
    // SAFETY: the C library's function of this name has this type.
    let next = unsafe { std::mem::transmute::<NonNull<c_void>, PthreadCreate>(next) };
    // SAFETY: the caller keeps its promises.
    unsafe { next(thread, attributes, start, argument) }
}

/// posix_spawnp(3), with its actions and attributes, and its program, arguments and environment.
///
/// # Safety
/// As for the function.
#[doc(hidden)]
#[must_use = "it says whether the call failed"]
pub unsafe fn posix_spawnp(
    process: *mut c_void,
    [actions, attributes]: [*const c_void; 2],
    [program, arguments, environment]: [*const c_void; 3],
) -> i32 {
    if escaped("starts a process") {
        return libc::EAGAIN;
    }
    let Some(next) = next(c"posix_spawnp") else { return libc::EAGAIN };
    // SAFETY: the C library's function of this name has this type.
    let next = unsafe { std::mem::transmute::<NonNull<c_void>, PosixSpawn>(next) };
    // SAFETY: the caller keeps its promises.
    unsafe { next(process, program, actions, attributes, arguments, environment) }
}

/// fork(2).
///
/// # Safety
/// As for the function.
#[doc(hidden)]
#[must_use = "the child and the parent go different ways"]
pub unsafe fn fork() -> i32 {
    // It is made all the same, since a caller knows no failure without `errno`; the run fails before the next poll.
    escaped("starts a process");
    let Some(next) = next(c"fork") else { return -1 };
    // SAFETY: the C library's function of this name has this type.
    let next = unsafe { std::mem::transmute::<NonNull<c_void>, Fork>(next) };
    // SAFETY: the caller keeps its promises.
    unsafe { next() }
}

/// Returns the C library's function of this name.
fn next(name: &CStr) -> Option<NonNull<c_void>> {
    // SAFETY: the name is a C string.
    NonNull::new(unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) })
}

/// nanosleep(2).
///
/// # Safety
/// As for the function.
#[doc(hidden)]
pub unsafe fn nanosleep(time: *const c_void, left: *mut c_void) -> i32 {
    if escaped("sleeps in the kernel") {
        return 0;
    }
    // SAFETY: the caller's arguments are the call's.
    result(unsafe { libc::syscall(libc::SYS_nanosleep, time, left) })
}

/// clock_nanosleep(2), which returns its error.
///
/// # Safety
/// As for the function.
#[doc(hidden)]
pub unsafe fn clock_nanosleep(
    clock: i32,
    flags: i32,
    time: *const c_void,
    left: *mut c_void,
) -> i32 {
    if escaped("sleeps in the kernel") {
        return 0;
    }
    // SAFETY: the caller's arguments are the call's.
    match unsafe { libc::syscall(libc::SYS_clock_nanosleep, clock, flags, time, left) } {
        0 => 0,
        _ => std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EINVAL),
    }
}

/// bind(2).
///
/// # Safety
/// As for the function.
#[doc(hidden)]
#[must_use = "it says whether the call failed"]
pub unsafe fn bind(socket: i32, to: *const c_void, length: u32) -> i32 {
    escaped("binds a real socket");
    // SAFETY: the caller's arguments are the call's.
    result(unsafe { libc::syscall(libc::SYS_bind, socket, to, length) })
}

/// connect(2).
///
/// # Safety
/// As for the function.
#[doc(hidden)]
#[must_use = "it says whether the call failed"]
pub unsafe fn connect(socket: i32, to: *const c_void, length: u32) -> i32 {
    escaped("connects a real socket");
    // SAFETY: the caller's arguments are the call's.
    result(unsafe { libc::syscall(libc::SYS_connect, socket, to, length) })
}

/// clock_gettime(2).
///
/// # Safety
/// As for the function.
#[doc(hidden)]
pub unsafe fn clock_gettime(clock: i32, time: *mut c_void) -> i32 {
    if !ARE_CAUGHT.load(RELAXED) {
        ARE_CAUGHT.store(true, RELAXED);
    }
    let is_wall = match clock {
        libc::CLOCK_MONOTONIC | libc::CLOCK_BOOTTIME | libc::CLOCK_MONOTONIC_COARSE => Some(false),
        libc::CLOCK_REALTIME | libc::CLOCK_REALTIME_COARSE => Some(true),
        _ => None,
    };
    if let Some(is_wall) = is_wall
        && let Some((now, is_stuck)) =
            simulated::polled_in(|polled| polled.std_now(is_wall.then(wall_clock).flatten()))
    {
        if is_stuck {
            escaped("waits for std's clock, which stands still");
        }
        let (s, ns) = (now.as_secs(), u64::from(now.subsec_nanos()));
        // SAFETY: it is the caller's `timespec`, of two words.
        unsafe { time.cast::<[u64; 2]>().write([s, ns]) };
        return 0;
    }
    // SAFETY: the caller's arguments are the call's.
    result(unsafe { libc::syscall(libc::SYS_clock_gettime, clock, time) })
}

/// The program has [`catch_escapes!`].
static ARE_CAUGHT: RealAtomicBool = RealAtomicBool::new(false);

/// Returns whether this program has [`catch_escapes!`].
pub(super) fn are_caught() -> bool {
    // std asks the C library, or what stands in its place.
    let _ = UNIX_EPOCH.elapsed();
    ARE_CAUGHT.load(RELAXED)
}

/// Returns what the wall clock of the current node shows, since 1970.
fn wall_clock() -> Option<Duration> {
    match Handle::try_current().ok()?.scheduler {
        Scheduler::Simulated(shared) => Some(shared.machine.clock.since_1970()),
        _ => None,
    }
}

/// getrandom(2).
///
/// # Safety
/// As for the function.
#[doc(hidden)]
pub unsafe fn getrandom(to: *mut c_void, length: usize, flags: u32) -> isize {
    let fill = |PolledIn { world, .. }: &PolledIn| {
        // SAFETY: the caller lends so many bytes.
        let bytes = unsafe { std::slice::from_raw_parts_mut(to.cast::<u8>(), length) };
        world.recorder.fill(bytes);
    };
    if simulated::polled_in(fill).is_some() {
        return isize::try_from(length).unwrap_or(isize::MAX);
    }
    // SAFETY: the caller's arguments are the call's.
    let count = unsafe { libc::syscall(libc::SYS_getrandom, to, length, flags) };
    isize::try_from(count).unwrap_or(-1)
}

fn result(returned: libc::c_long) -> i32 {
    if returned == 0 { 0 } else { -1 }
}

/// Fails the run if the calling thread polls a task of a simulation; returns whether it does.
fn escaped(what: &str) -> bool {
    let note = |polled: &PolledIn| polled.fail(&format!("{what}, {}", call_site()));
    simulated::polled_in(note).is_some()
}

/// Returns the first place of the calling stack that is neither std's nor ours.
fn call_site() -> String {
    let stack = Backtrace::force_capture().to_string();
    // A function's line is followed by that of its file.
    let lines: Vec<_> = stack.lines().map(str::trim).collect();
    let is_foreign = |function: &str| {
        let name = function.split_once(": ").map_or(function, |(_, name)| name);
        let name = name.trim_start_matches('<').trim_start_matches("dyn ");
        let inner = ["std::", "core::", "alloc::", "vigie_", "__", "std[", "core["];
        !inner.iter().any(|prefix| name.starts_with(prefix)) && name.contains("::")
    };
    let pairs = lines.windows(2).filter(|pair| pair[1].starts_with("at "));
    let mut foreign = pairs.filter(|pair| {
        let is_std = ["/rustc/", "/rust/deps/", "/rustlib/src/rust/"]
            .iter()
            .any(|part| pair[1].contains(part));
        !is_std && is_foreign(pair[0]) && !pair[1].contains("simulation/escapes.rs")
    });
    let is_macro = |function: &str| {
        let all = [
            "::pthread_create",
            "::posix_spawnp",
            "::fork",
            "::nanosleep",
            "::clock_nanosleep",
            "::bind",
            "::connect",
        ];
        all.iter().any(|name| function.ends_with(name))
    };
    let site = foreign.find(|pair| !is_macro(pair[0]));
    site.map_or_else(|| "at an unknown place".to_owned(), |pair| pair[1].to_owned())
}
