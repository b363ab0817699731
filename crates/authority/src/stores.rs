//! Where systems and browsers look for authorities.
