//! Partition administration (table 1.7): this machine has no partitions. The calls are there so
//! that programs link, and answer -1 with `ENOSYS`.

use std::ffi::c_long;

fn refuse() {
    let why = "there are no partitions; leave the call out";
    super::errno::set_for(&super::Failure::System(libc::ENOSYS, why.into()));
}

macro_rules! none {
    ($($name:ident $fortran:ident)*) => { $(
        #[unsafe(no_mangle)]
        pub extern "C" fn $name() -> c_long {
            refuse();
            -1
        }

        #[unsafe(no_mangle)]
        pub extern "C" fn $fortran() -> i32 {
            refuse();
            -1
        }
    )* };
}

none! {
    nx_mkpart nx_mkpart_
    nx_mkpart_rect nx_mkpart_rect_
    nx_mkpart_map nx_mkpart_map_
    nx_mkpart_attr nx_mkpart_attr_
    nx_rmpart nx_rmpart_
    nx_chpart_epl nx_chpart_epl_
    nx_chpart_mod nx_chpart_mod_
    nx_chpart_name nx_chpart_name_
    nx_chpart_owner nx_chpart_owner_
    nx_chpart_rq nx_chpart_rq_
    nx_chpart_sched nx_chpart_sched_
    nx_pspart nx_pspart_
}
