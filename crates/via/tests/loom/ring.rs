//! The entries of a ring, the data that they announce, and the wake-ups in both directions: ring-1, ring-2, wakeup-2. The VIs are those of the
//! shared-memory provider with a ring of two entries; only the handshake is left out.
//!
//! loom never lets a load read what is stored after it, so data that is overwritten too early cannot be read by mistake. Instead, each receiver
//! counts the messages that it has read by relaxed stores, and the sender checks the count before it overwrites one: without a
//! happens-before edge it may load an old count.
//!
//! The orderings and steps are in the provider, where a model cannot leave them out. Each of these changes was made by hand, and fails:
//!
//! | change | models that fail |
//! | --- | --- |
//! | `Memory::store_line` stores the first word relaxed, or before the others | all |
//! | `Memory::load` is relaxed | all |
//! | `Memory::store` is relaxed | `entries_arrive_once`, `a_head_comes_with_its_bytes`, `a_head_is_not_put_over_a_later_write` |
//! | `Consumer::next_headed_write` loads the first word relaxed | `entries_arrive_once`, `a_head_comes_with_its_bytes` |
//! | `Producer::has_room` allows an entry more | `entries_arrive_once`, `no_room_is_slept_through` |
//! | `Producer::refresh` frees staged bytes an entry early | `staged_bytes_arrive_once` |
//! | `ShmVi::receive` tells of an entry's consumption before it carries the entry out | `staged_bytes_arrive_once`, `a_head_is_not_put_over_a_later_write` |
//! | `ShmVi::post_headed_write` writes the bytes after the entry | `a_head_comes_with_its_bytes` |
//! | `ShmVi::post` does not tell of consumed entries first | `a_head_comes_with_its_bytes` |
//! | `ShmConnection::note_head` does nothing, or forgets the earlier range | `a_head_is_not_put_over_a_later_write` |
//! | `ShmConnection::push_headed_write` does not notify | `no_entry_is_slept_through` |
//! | `ShmConnection::publish_consumed` does not notify | `no_room_is_slept_through` |
//! | `ModelVi::fall_asleep`, which stands for `Shm::arm`, asks for the wake-up after it has announced its sleep | `no_room_is_slept_through` |
//! | the sender's fence, or the sleeper's, is missing | `no_entry_is_slept_through`, `no_room_is_slept_through` |

use std::sync::Arc;

use loom::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    thread,
};
use vigie_via::{
    loom_exports::{ModelVi, connected_vis},
    vi::HeadedBody,
};

use crate::socket::Socket;

/// The entries of a ring in these models.
const ENTRIES: u64 = 2;
/// The place of the count of messages that were read, in the sender's area.
const CREDIT_AT: u64 = 64;
const AREA_BYTES: u64 = 128;

fn immediate(number: u64) -> i32 {
    i32::try_from(number).expect("few messages")
}

fn byte(number: u64) -> u8 {
    u8::try_from(number).expect("few messages")
}

fn head(number: u64) -> u128 {
    u128::from_ne_bytes([byte(number); 16])
}

/// Calls `poll` until it returns something.
fn wait_for<T>(mut poll: impl FnMut() -> Option<T>) -> T {
    loop {
        if let Some(found) = poll() {
            return found;
        }
        thread::yield_now();
    }
}

/// Works until the peer has consumed what it must for the rest to be sent.
fn carry_on(vi: &mut ModelVi) {
    while vi.waits_for_peer() {
        vi.work();
        thread::yield_now();
    }
}

fn connected(receive_count: u64, is_fenced: bool) -> [ModelVi; 2] {
    let [sender, mut receiver] = connected_vis(AREA_BYTES, is_fenced);
    (0..receive_count).for_each(|_| receiver.post_receive(0, 0));
    [sender, receiver]
}

/// More entries than the ring has: each arrives once, whole and in order.
#[test]
fn entries_arrive_once() {
    const COUNT: u64 = 2 * ENTRIES + 1;
    loom::model(|| {
        let [mut sender, mut receiver] = connected(COUNT, false);
        let read = Arc::new(AtomicU64::new(0));
        let noted = read.clone();
        let thread = thread::spawn(move || {
            for number in 1..=COUNT {
                wait_for(|| sender.has_room().then_some(()));
                assert!(noted.load(Relaxed) + ENTRIES >= number, "an entry that is still read");
                let body = [byte(number); 24];
                assert!(sender.post_headed_write(number, immediate(number), head(number), &body));
            }
        });
        for number in 1..=COUNT {
            let found = wait_for(|| receiver.take_headed_write());
            assert_eq!((found.offset, found.immediate), (number, immediate(number)));
            assert_eq!(found.head, head(number));
            let HeadedBody::Here(short) = found.body else { panic!("not in its entry") };
            assert_eq!(short.to_vec(), [byte(number); 24]);
            read.store(number, Relaxed);
        }
        assert_eq!(receiver.take_headed_write(), None);
        thread.join().expect("no panic");
    });
}

/// Heads travel in entries and their bytes to one place, which is written again once the reader has given credit for it. A head and its bytes are
/// of the same message, and a sender with credit need not wait for anything else.
#[test]
fn a_head_comes_with_its_bytes() {
    const COUNT: u64 = 3;
    loom::model(|| {
        let [mut sender, mut receiver] = connected(COUNT, false);
        let read = Arc::new(AtomicU64::new(0));
        let noted = read.clone();
        let thread = thread::spawn(move || {
            for number in 1..=COUNT {
                wait_for(|| (sender.load_area(CREDIT_AT) == number - 1).then_some(()));
                assert_eq!(noted.load(Relaxed), number - 1, "bytes that are still read");
                let body = [byte(number); 32];
                let is_sent = sender.post_headed_write(0, immediate(number), head(number), &body);
                assert!(is_sent, "the credit came before the consumption");
            }
        });
        for number in 1..=COUNT {
            let found = wait_for(|| receiver.take_headed_write());
            assert_eq!((found.head, found.body), (head(number), HeadedBody::InPlace(32)));
            assert_eq!(receiver.read_area(16, 32), [byte(number); 32]);
            read.store(number, Relaxed);
            receiver.post_write(CREDIT_AT, None, &number.to_ne_bytes());
        }
        thread.join().expect("no panic");
    });
}

/// The usual poll writes heads to their places. A later write to one of them stays, even if a place before it was written in between.
#[test]
fn a_head_is_not_put_over_a_later_write() {
    const COUNT: i32 = 3;
    loom::model(|| {
        let [mut sender, mut receiver] = connected(3, false);
        let thread = thread::spawn(move || {
            assert!(sender.post_headed_write(64, 1, head(1), &[1; 32]));
            assert!(sender.post_headed_write(0, 2, head(2), &[2; 32]));
            sender.post_write(64, Some(3), &[3; 48]);
            carry_on(&mut sender);
        });
        for number in 1..=COUNT {
            let found = wait_for(|| {
                receiver.work();
                receiver.take_received()
            });
            assert_eq!(found, number);
        }
        assert_eq!(receiver.read_area(0, 48), [2; 48]);
        assert_eq!(receiver.read_area(64, 48), [3; 48]);
        thread.join().expect("no panic");
    });
}

/// More bytes than the staging area has: each message arrives once, whole and in order.
#[test]
fn staged_bytes_arrive_once() {
    const COUNT: u64 = 3;
    loom::model(|| {
        let [mut sender, mut receiver] = connected_vis(COUNT * 48, false);
        (0..COUNT).for_each(|index| receiver.post_receive(index * 48, 48));
        let thread = thread::spawn(move || {
            (1..=COUNT).for_each(|number| sender.post_send(immediate(number), &[byte(number); 48]));
            carry_on(&mut sender);
        });
        for number in 1..=COUNT {
            let found = wait_for(|| {
                receiver.work();
                receiver.take_received()
            });
            assert_eq!(found, immediate(number));
            assert_eq!(receiver.read_area((number - 1) * 48, 48), [byte(number); 48]);
        }
        thread.join().expect("no panic");
    });
}

/// A receiver that sleeps whenever nothing has arrived.
#[test]
fn no_entry_is_slept_through() {
    const COUNT: u64 = 2;
    loom::model(|| {
        let [mut sender, mut receiver] = connected(COUNT, true);
        let socket = Arc::new(Socket::default());
        let notified = socket.clone();
        let thread = thread::spawn(move || {
            for number in 1..=COUNT {
                let body = [byte(number); 8];
                assert!(sender.post_headed_write(number, immediate(number), head(number), &body));
                notified.ring(sender.sent_wakeups());
            }
        });
        let mut received = 0;
        while received < COUNT {
            receiver.work();
            received += receiver.take_all_received();
            if received < COUNT {
                receiver.fall_asleep();
                if !receiver.work() {
                    socket.sleep();
                }
                receiver.wake_up();
            }
        }
        thread.join().expect("no panic");
    });
}

/// A sender that sleeps whenever the ring is full.
#[test]
fn no_room_is_slept_through() {
    const COUNT: u64 = ENTRIES + 1;
    loom::model(|| {
        let [mut sender, mut receiver] = connected(COUNT, true);
        let socket = Arc::new(Socket::default());
        let notified = socket.clone();
        let thread = thread::spawn(move || {
            let mut received = 0;
            while received < COUNT {
                receiver.work();
                notified.ring(receiver.sent_wakeups());
                received += receiver.take_all_received();
                thread::yield_now();
            }
        });
        (1..=COUNT).for_each(|number| sender.post_write(0, Some(immediate(number)), &[0; 8]));
        while sender.waits_for_peer() {
            sender.fall_asleep();
            if !sender.work() {
                socket.sleep();
            }
            sender.wake_up();
            sender.work();
        }
        thread.join().expect("no panic");
    });
}
