//! The greeting that travels with a connection, by which two engines introduce themselves.

use super::{
    EngineError,
    area::{AREA_BYTES_MAX, longest_frame},
    config::{ANNOUNCED_MAX, EngineConfig},
    credits::DESCRIPTORS_MAX,
    link::{LocalResources, PeerParameters},
};
use crate::{
    auth::{Secret, TAG_BYTES, is_same},
    vi::RemoteKey,
};

const MAGIC: u32 = u32::from_be_bytes(*b"vgm5");

/// The length of a greeting without its proof, and with it, in bytes.
const BODY_BYTES: usize = 56;
const GREETING_BYTES: usize = BODY_BYTES + TAG_BYTES;

/// Returns the proof that a greeting for rank `to` is from the rank that it names: its tag under the key that only these two know.
fn proof(body: &[u8], to: u32, key: &Secret) -> [u8; TAG_BYTES] {
    key.tag(&[b"greeting", &to.to_le_bytes(), body])
}

/// Returns whether a greeting for rank `to` has the proof that `key` asks for.
fn is_proven(bytes: &[u8], to: u32, key: Option<&Secret>) -> bool {
    let (body, tag) = bytes.split_at(BODY_BYTES);
    key.is_none_or(|key| is_same(tag, &proof(body, to, key)))
}

/// Returns the rank that a greeting for rank `to` is from, if that is known by the keys of pairs; `None` if it is from a stranger.
pub(super) fn proven_rank<'a>(
    bytes: &[u8],
    to: u32,
    key_of: impl FnOnce(u32) -> Option<&'a Secret>,
) -> Option<u32> {
    rank(bytes).filter(|rank| is_proven(bytes, to, key_of(*rank)))
}

/// Returns the greeting of `rank` for the rank `to`, with the key that the two share if there is one.
pub(super) fn encode(
    (rank, to): (u32, u32),
    size: u32,
    config: &EngineConfig,
    own: &LocalResources,
    key: Option<&Secret>,
) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(GREETING_BYTES);
    for word in [MAGIC, rank, size] {
        bytes.extend_from_slice(&word.to_le_bytes());
    }
    for word in [own.area_bytes, own.descriptors, own.control_entries, config.window_bytes] {
        bytes.extend_from_slice(&word.to_le_bytes());
    }
    for key in [own.area.key, own.control.key] {
        bytes.extend_from_slice(&key.0.to_le_bytes());
    }
    for word in
        [u32::from(config.is_unreliable()), config.frame_bytes_max, config.announced_messages_max]
    {
        bytes.extend_from_slice(&word.to_le_bytes());
    }
    let tag = key.map_or([0; TAG_BYTES], |key| proof(&bytes, to, key));
    bytes.extend_from_slice(&tag);
    bytes
}

fn word(bytes: &[u8], at: usize) -> u32 {
    let mut word = [0; 4];
    word.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(word)
}

fn long(bytes: &[u8], at: usize) -> u64 {
    u64::from(word(bytes, at)) | u64::from(word(bytes, at + 4)) << 32
}

/// Returns the rank that a greeting claims to be from; `None` if it is not a greeting.
pub(super) fn rank(bytes: &[u8]) -> Option<u32> {
    (bytes.len() == GREETING_BYTES && word(bytes, 0) == MAGIC).then(|| word(bytes, 4))
}

/// Returns the parameters in the greeting of `rank` for the rank `to`.
pub(super) fn decode(
    bytes: &[u8],
    (rank, to): (u32, u32),
    size: u32,
    config: &EngineConfig,
    key: Option<&Secret>,
) -> Result<PeerParameters, EngineError> {
    let bad = |what| Err(EngineError::Greeting { rank, what });
    match self::rank(bytes) {
        None => return bad("it is not of this version"),
        Some(found) if found != rank => return bad("it is from another rank"),
        Some(_) if !is_proven(bytes, to, key) => return bad("it lacks the proof of its rank"),
        Some(_) => {}
    }
    if word(bytes, 8) != size {
        return bad("it counts other ranks");
    }
    if word(bytes, 44) != u32::from(config.is_unreliable()) {
        return bad("it expects another kind of VI");
    }
    let parameters = PeerParameters {
        area_bytes: word(bytes, 12),
        descriptors: word(bytes, 16),
        control_entries: word(bytes, 20),
        window_bytes: word(bytes, 24),
        frame_bytes_max: word(bytes, 48),
        announced_messages_max: word(bytes, 52),
        area_key: RemoteKey(long(bytes, 28)),
        control_key: RemoteKey(long(bytes, 36)),
    };
    let is_area = (4096..=AREA_BYTES_MAX).contains(&parameters.area_bytes)
        && parameters.area_bytes.is_multiple_of(64);
    let is_queue = (4..=1024).contains(&parameters.control_entries)
        && (parameters.control_entries + 8..=DESCRIPTORS_MAX).contains(&parameters.descriptors);
    let is_frame =
        (128..=longest_frame(parameters.area_bytes)).contains(&parameters.frame_bytes_max);
    let is_announcing = (1..=ANNOUNCED_MAX).contains(&parameters.announced_messages_max);
    if !is_area || !is_frame || !is_queue || !is_announcing || parameters.window_bytes < 128 {
        return bad("its sizes are out of range");
    }
    Ok(parameters)
}
