//! Enumerations whose variants have a name and a sentence for the user.

/// Implements the list of variants, their names, and their meanings, which are their doc comments.
macro_rules! named_variants {
    ($type:ident: $($(#[doc = $doc:literal])+ $variant:ident = $name:literal;)+) => {
        impl $type {
            /// All variants, in order.
            pub const ALL: &[Self] = &[$(Self::$variant),+];

            /// The name in reports, JSON and metrics.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)+ }
            }

            /// One sentence for the user.
            #[must_use]
            pub const fn meaning(self) -> &'static str {
                match self { $(Self::$variant => concat!($($doc),+).trim_ascii(),)+ }
            }
        }
    };
}

pub(crate) use named_variants;
