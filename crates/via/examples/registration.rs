//! What the cache of registrations saves of a NIC over shared memory, by itself: nanoseconds with and without.
//!
//! ```text
//! cargo run --release -p vigie-via --example registration
//! ```
//!
//! Prints for memory of the heap what it costs to have it registered, and for buffers what it costs to get
//! one, to write each of its pages, and to give it back. Peers, which map buffers and fault for each page
//! too, are not part of it.

use std::error::Error;

use vigie_detect::Instant;
use vigie_via::{
    shm::Shm,
    vi::{Memory, MemoryAttributes, Provider, RegistrationCache},
};

const SIZES: [usize; 3] = [64 << 10, 1 << 20, 8 << 20];

/// Returns the median time of an `act`, in nanoseconds, of groups of `rounds`.
fn median(
    rounds: u32,
    mut act: impl FnMut() -> Result<(), Box<dyn Error>>,
) -> Result<f64, Box<dyn Error>> {
    let mut times = Vec::new();
    for _ in 0..51 {
        let began = Instant::now();
        for _ in 0..rounds {
            act()?;
        }
        times.push((Instant::now() - began).as_secs_f64() * 1e9 / f64::from(rounds));
    }
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut nic = Shm::open()?;
    let tag = nic.create_tag();
    let attributes = MemoryAttributes { allows_read: true, ..MemoryAttributes::private(tag) };
    println!("{:>32} {:>10} {:>10} {:>7}", "ns", "without", "with", "ratio");
    let mut row = |name: &str, size: usize, is_buffer: bool, rounds: u32| {
        let mut costs = [0.0; 2];
        for (cost, bytes_max) in costs.iter_mut().zip([0, 64 << 20]) {
            let mut cache = RegistrationCache::new(bytes_max, 64);
            let memory = Memory::allocate(size)?;
            *cost = median(rounds, || {
                if is_buffer {
                    let buffer = cache.buffer(&mut nic, size, attributes)?;
                    for page in 0..size / 4096 {
                        buffer.store(page as u64 * 4096, 1)?;
                    }
                } else {
                    drop(cache.register(&mut nic, &memory, attributes)?);
                }
                Ok(())
            })?;
            cache.clear(&mut nic);
        }
        let [without, with] = costs;
        println!("{name:>32} {without:>10.0} {with:>10.0} {:>7.1}", without / with);
        Ok::<_, Box<dyn Error>>(())
    };
    row("memory of the heap", 1 << 20, false, 1000)?;
    for size in SIZES {
        row(&format!("a buffer of {} KiB", size >> 10), size, true, 20)?;
    }
    Ok(())
}
