//! How long a key is current and how long a ticket lives.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use thiserror::Error;

/// Seconds since 1970-01-01 UTC. Wall-clock time, since key files outlive processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UnixTime(pub u64);

impl UnixTime {
    /// The moment `duration` later, in whole seconds.
    pub fn after(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(duration.as_secs()))
    }
}

impl From<SystemTime> for UnixTime {
    /// A time before 1970 becomes 1970.
    fn from(time: SystemTime) -> Self {
        Self(time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()))
    }
}

/// Rotation period and ticket lifetime of a ring.
///
/// By default both are 12 h. A ring then has at most one previous key, and an attacker who steals the
/// ring can read the early data of the last 24 h (only the ticket protects it, RFC 8446 section
/// 2.3). A longer lifetime extends that and gains little: a client that returns after 12 h can
/// afford a full handshake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Schedule {
    rotation: Duration,
    lifetime: Duration,
}

/// Why a schedule is invalid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum ScheduleError {
    /// The rotation period is out of bounds.
    #[error("the rotation period must be 60 to 604800 seconds (7 days), not {0}")]
    Rotation(u64),
    /// The ticket lifetime is out of bounds.
    #[error("the ticket lifetime must be 1 to 604800 seconds (7 days, RFC 8446 4.6.1), not {0}")]
    Lifetime(u64),
}

impl Schedule {
    /// Each key is current for `rotation`, each ticket is valid for `lifetime`, both in whole
    /// seconds.
    ///
    /// # Errors
    /// Returns [`ScheduleError`] unless `rotation` is between a minute and 7 days, and `lifetime`
    /// between a second and 7 days (RFC 8446 section 4.6.1).
    pub fn new(rotation: Duration, lifetime: Duration) -> Result<Self, ScheduleError> {
        let (rotation, lifetime) = (rotation.as_secs(), lifetime.as_secs());
        if !(60..=SEVEN_DAYS).contains(&rotation) {
            return Err(ScheduleError::Rotation(rotation));
        }
        if !(1..=SEVEN_DAYS).contains(&lifetime) {
            return Err(ScheduleError::Lifetime(lifetime));
        }
        Ok(Self {
            rotation: Duration::from_secs(rotation),
            lifetime: Duration::from_secs(lifetime),
        })
    }

    /// How long a key is current.
    pub fn rotation(&self) -> Duration {
        self.rotation
    }

    /// How long a ticket is valid. Use it as the TLS session timeout.
    pub fn lifetime(&self) -> Duration {
        self.lifetime
    }
}

impl Default for Schedule {
    fn default() -> Self {
        Self { rotation: HALF_A_DAY, lifetime: HALF_A_DAY }
    }
}

const HALF_A_DAY: Duration = Duration::from_secs(12 * 3600);
const SEVEN_DAYS: u64 = 7 * 24 * 3600;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rfc8446_4_6_1_a_ticket_lives_for_seven_days_at_most() {
        let day = Duration::from_secs(24 * 3600);
        assert!(Schedule::new(day, 7 * day).is_ok());
        let longer = Schedule::new(day, 7 * day + Duration::from_secs(1));
        assert_eq!(longer, Err(ScheduleError::Lifetime(604_801)));
    }

    #[test]
    fn bounds_of_the_rotation() {
        let hour = Duration::from_secs(3600);
        assert!(Schedule::new(Duration::from_secs(60), hour).is_ok());
        assert!(Schedule::new(Duration::from_secs(59), hour).is_err());
        assert!(Schedule::new(200 * hour, hour).is_err());
        assert!(Schedule::new(hour, Duration::from_millis(999)).is_err());
    }
}
