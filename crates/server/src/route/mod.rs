pub(crate) mod authority;
pub(crate) mod early;
pub(crate) mod response_fields;
pub(crate) mod routes;
pub(crate) mod sites;
pub(crate) mod snapshot;
pub(crate) mod validation;
