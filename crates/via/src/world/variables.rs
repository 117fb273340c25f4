//! The variables by which vigie's own launchers tell a rank its place.

/// Names the descriptor through which a rank reaches its launcher.
pub const RENDEZVOUS_VARIABLE: &str = "VIGIE_RENDEZVOUS";
/// Tells a rank its number.
pub const RANK_VARIABLE: &str = "VIGIE_RANK";
/// Tells a rank the number of ranks.
pub const SIZE_VARIABLE: &str = "VIGIE_SIZE";

/// Holds the secret of a rendezvous over TCP: 32 hexadecimal digits.
pub const SECRET_VARIABLE: &str = "VIGIE_SECRET";
/// Names the file that holds the secret of a rendezvous over TCP.
pub const SECRET_FILE_VARIABLE: &str = "VIGIE_SECRET_FILE";
