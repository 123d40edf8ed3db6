/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FAKE_VERBS_FAULTS_H
#define FAKE_VERBS_FAULTS_H

#define FAKE_REMOTE_ERROR  0xbadU
#define FAKE_BATCH_REFUSED 0xfa11U

#endif
