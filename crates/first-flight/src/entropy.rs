//! The random values of a flight.

/// The random values of a flight.
#[derive(Clone)]
pub struct Entropy {
    /// The client random.
    pub random: [u8; 32],
    /// The X25519 private key.
    pub private_key: [u8; 32],
    /// Over QUIC: the client's first destination connection id, and its own (source) id.
    pub connection_ids: [[u8; 8]; 2],
}

impl Entropy {
    /// Reads random values from the operating system.
    ///
    /// # Panics
    /// If the system has no random numbers.
    pub fn system() -> Self {
        let (mut random, mut private_key) = ([0; 32], [0; 32]);
        getrandom::fill(&mut random).expect("the system has random numbers");
        getrandom::fill(&mut private_key).expect("the system has random numbers");
        let mut ids = [0; 16];
        getrandom::fill(&mut ids).expect("the system has random numbers");
        let [destination, source] = [0, 8].map(|at| {
            let mut id = [0; 8];
            id.copy_from_slice(&ids[at..at + 8]);
            id
        });
        Self { random, private_key, connection_ids: [destination, source] }
    }
}
