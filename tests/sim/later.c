#include "driver.h"
uintptr_t array_address(CUarray h, size_t *p, size_t *s){(void)h;(void)p;(void)s;return 0;}
void array_forget_all(void){} void vmm_forget_all(void){} void graph_forget_all(void){} void green_forget_all(void){}
bool capture_forbids(void){return false;} CUresult capture_context_call(struct context*c){(void)c;return 0;}
CUresult capture_stream_call(struct stream*s){(void)s;return 0;} CUresult capture_submit(struct stream*s,struct work w,struct node**n){(void)s;(void)w;(void)n;return 801;}
CUresult capture_implicit(struct stream*s){(void)s;return 0;} CUresult capture_record(struct stream*s,struct event*e){(void)s;(void)e;return 801;}
CUresult capture_wait(struct stream*s,struct event*e,bool*h){(void)s;(void)e;*h=false;return 0;}
CUresult capture_allocate(struct stream*s,size_t z,struct pool*p,CUdeviceptr*o){(void)s;(void)z;(void)p;(void)o;return 801;}
CUresult capture_free(struct stream*s,CUdeviceptr a){(void)s;(void)a;return 801;}
bool capture_active(void){return false;} void capture_forget_stream(struct stream*s){(void)s;} void capture_reset(void){}
enum verdict graph_run_step(struct graph_run*r,struct context*c){(void)r;(void)c;return DONE;} void graph_run_free(struct graph_run*r){(void)r;}
CUresult capture_event_call(struct event*e){(void)e;return 0;}
